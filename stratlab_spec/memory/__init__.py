"""The memory model: predict a run's memory from counts of its strategy."""

DEVICE_GIB = 79.2
"""An H100 of 80 GB: 81,559 MiB by nvidia-smi, of which the driver keeps 480 that no process gets."""

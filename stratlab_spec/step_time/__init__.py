"""Time of a training step before it runs: kernels, host, collectives and schedules, without torch."""

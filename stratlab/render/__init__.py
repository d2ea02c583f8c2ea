"""A chart as a script for machines without Kubernetes: the same settings, the same program, the same run directory.

start      what helm renders, taken apart: settings, secrets, processes, folders
shell      the lines that every script has
torchrun   one machine, or several that are started by hand
slurm      a batch script
hostfile   several machines over ssh
docker     one machine, in the image
"""

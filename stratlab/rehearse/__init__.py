"""A rehearsal: what helm renders, run as local processes. No cluster, no container, no GPU needed.

helm         finds helm, renders a chart
plan         checks what was rendered before anything starts
checking     asks the trainer whether all runs may start
operator     pods of a PyTorchJob, with the environment that the training operator injects
pods         a pod template becomes commands
environment  what the processes know of this machine
processes    starts processes, leaves none behind
interruption a signal becomes an exception
replicas     runs pods to their end; which exit code counts
progress     reads how far a run is from its run directory
display      shows it: a live line on a terminal, plain lines elsewhere
summary      what it says at the end
folders      what a rehearsal creates, and takes away again
rehearsal    the whole: server, runs one after the other, analysis
"""

"""A rehearsal: what helm renders, run as local processes. No cluster, no container, no GPU needed.

planned_run  renders each chart and checks what came of it before anything starts
operator     pods of a PyTorchJob, with the environment that the training operator injects
replicas     runs pods to their end; which exit code counts
summary      what it says at the end
folders      what a rehearsal creates, and takes away again
rehearsal    the whole: server, runs one after the other, analysis
"""

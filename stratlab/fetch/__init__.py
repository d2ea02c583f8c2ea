"""A run, or a whole comparison, from a cluster's volume onto this machine.

command     the verb `stratlab fetch`
unpacking   what has arrived takes its place in a folder, whole or not at all
folder_pod  a folder of the volume as an archive, through the log of a short-lived pod
"""

"""This machine, for every command that uses it.

processes      starts processes, leaves none behind
environment    what they know of this machine
interruption   a signal becomes an exception
full_volume    whether a volume has no room left
"""

"""A run directory, the interface to the trainer, as every command reads it.

files     one file at a time, with distrust.
record    all of it: its files, missing ones, and the run's end.
outcome   whether the run has ended, and how, only by its files.
foreign   traces of another program, instead of a run's own files.
"""

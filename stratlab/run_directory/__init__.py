"""A run directory, the interface to the trainer, as every command reads it.

files     one file at a time, with distrust
record    all of it: what is there, what is missing, how the run ended
outcome   whether the run has ended, and how, by its files alone
foreign   instead of a run's own files: what is known of traces of another program
"""

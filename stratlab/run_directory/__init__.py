"""A run directory, the interface to the trainer, as every command reads it.

files      one file at a time, with distrust; their places, for readers and links.
record     all of it: its files, missing ones, the run's end, its step times.
outcome    whether the run has ended, and how, only by its files.
late_rank  a rank that is late by more than chance explains.
"""

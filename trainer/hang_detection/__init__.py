"""A rank that does not arrive: seen from outside, and named with what it was doing.

pulse     what a rank is at, in memory that its launcher shares
witness   the rank's own thread, which says when it waits for others, and for whom
stacks    its Python stack, written by a signal and read
verdict   from what all ranks say: who did not arrive
alone     what rank 0 does by itself, while the others wait outside of the collectives

The launcher's part, which watches all of it: trainer/launch/watchdog.py.
"""

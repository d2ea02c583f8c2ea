"""A rank that does not arrive: seen from outside, and named with what it was doing.

heartbeat         what a rank is at, in memory that its launcher shares
watchdog_thread   the rank's own thread, which says when it waits for others, and for whom
diagnosis         its Python stack, written by a signal; and from what all ranks say: who did not arrive
rank_zero_task    what rank 0 does by itself, while the others wait outside of the collectives

The launcher's part, which watches all of it: trainer/launch/watchdog.py.
"""

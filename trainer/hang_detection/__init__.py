"""Detect a rank that does not arrive, and report its activity.

* heartbeat: the rank's activity, in memory that it shares with its launcher, and its Python stack, written by a signal;
  finds from all reports which ranks did not arrive
* watchdog_thread: the rank's own thread, which reports when the rank waits for others, and in which collective
* rank_zero_task: the work of rank 0 while the others wait outside of collectives

The launcher watches all of it: trainer/launch/watchdog.py.
"""

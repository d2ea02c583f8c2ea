"""How far runs are, and how a terminal shows it.

run_progress   read from a run directory
growing_wait   how long until the same is said again
display        a live line per run on a terminal, plain lines elsewhere
"""

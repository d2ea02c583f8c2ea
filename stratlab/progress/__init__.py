"""How far runs are, and how a terminal shows it.

run_progress   read from a run directory
display        a live line per run on a terminal, plain lines elsewhere
"""

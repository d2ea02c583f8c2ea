"""What the traces of a run say: where each step's time went, on which rank, in which phase; `analyze.py` is the way in.

Nothing is imported here: a process that only reads one trace must not pay for pages and tables.
"""

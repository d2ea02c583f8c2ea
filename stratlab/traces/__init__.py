"""Trace files of a run: finding them, reading them, putting them together. Times are whole nanoseconds."""

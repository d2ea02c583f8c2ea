"""Find, read and merge the trace files of a run. Times are whole nanoseconds."""

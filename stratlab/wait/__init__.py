"""Waits until a run has ended: by the files of its run directory, and by its resource on the cluster."""

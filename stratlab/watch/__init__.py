"""Shows a run on the cluster as it goes, and ends with its outcome."""

"""Removes the folder of a run, here or on the results volume of a cluster."""

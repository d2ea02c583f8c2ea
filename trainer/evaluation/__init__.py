"""Runs that only evaluate: in pods, and from the command line."""

"""Traces that were never recorded, with known answers."""

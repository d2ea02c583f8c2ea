"""The rules R1 to R12 as data."""

"""Faults, injected on purpose: what becomes of a run, how long it takes, what is lost."""

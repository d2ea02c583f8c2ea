"""Parallel dims, layouts and their rules: processes, model and settings -> the axes of the device mesh."""

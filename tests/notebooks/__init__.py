"""The notebooks, cell by cell."""

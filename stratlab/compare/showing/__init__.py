"""The comparison for readers: the page and its sections, a table for a terminal, files."""

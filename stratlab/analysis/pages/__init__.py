"""What the analysis of one run looks like: one HTML page, and the same in Markdown; also of a run without traces."""

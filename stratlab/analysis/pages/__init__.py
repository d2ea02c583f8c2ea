"""What the analysis of one run looks like: one HTML page, and the same in Markdown."""

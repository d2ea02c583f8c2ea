"""The content of report.json and of the tables, out of rows and of the run's own files."""

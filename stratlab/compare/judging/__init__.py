"""May the runs be compared, and who is best in what. Nothing here draws."""

"""Run a matrix of strategies, models and sizes as helm releases or local processes, then compare the runs."""

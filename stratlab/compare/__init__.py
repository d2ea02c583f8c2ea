"""Runs side by side: what each measured, whether they may be compared, and who is best in what.

reading          what each run tells: folders, experiments, step times, layouts, surroundings
judging          may they be compared, and who is best in what; nothing here draws
explaining       why one is slower than another, in parts and in one sentence
comparison       the three together: the content of report.json
showing          the same as a page, a table for a terminal, a CSV file
mlflow_entry     puts it beside the runs in MLflow
comparison_pod   does all of it where the runs are, on a cluster
"""

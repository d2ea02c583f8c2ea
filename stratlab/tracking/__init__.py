"""MLflow as every command meets it.

address      of a server, as a user gives it
redirect     a server that sends its callers elsewhere
server       one that is started here, with its store in a folder
mlflow_run   the MLflow run of a run directory
"""

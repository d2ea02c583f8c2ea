"""A run's metrics on their way to MLflow.

command     the verbs `stratlab metrics ...`
replay      asks the trainer for it, whose launcher sends them while a run is at work: here, or in a pod of its image
run_gauges  the newest numbers for Prometheus, which asks for them
"""

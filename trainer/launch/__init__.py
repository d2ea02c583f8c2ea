"""The launcher's work before and around the ranks, without torch: checks, rendezvous, watchdog and the MLflow
sender.
"""

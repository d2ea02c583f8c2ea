"""Checks that a finished run is whole, here and in MLflow."""

"""Waits until a run has ended: by the files of its run directory, and by its resource on the cluster."""

from stratlab.wait.ended import Outcome, wait_for_run
from stratlab.wait.files import look, read_attempts

__all__ = ["Outcome", "look", "read_attempts", "wait_for_run"]

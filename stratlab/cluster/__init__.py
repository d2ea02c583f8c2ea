"""The Kubernetes API as this program sees it: where it is, the workload of a run, watches that go on."""

from __future__ import annotations


class ClusterError(Exception):
    """The cluster does not do what was asked; one sentence.

    `status` is the HTTP status, if there was one; `retry_after_s` what the server asked for, else 0.
    """

    def __init__(self, sentence: str, status: int | None = None, retry_after_s: float = 0.0) -> None:
        super().__init__(sentence)
        self.status = status
        self.retry_after_s = retry_after_s

"""Access to the Kubernetes API.

`connection` finds the API server, `workloads` reads the custom resource of a run, and `watching` follows changes.
"""

from __future__ import annotations


class ClusterError(Exception):
    """Report in one sentence why the cluster does not serve a request.

    `status` is the HTTP status, if the server answered. `retry_after_s` is the server's Retry-After in seconds, else 0.
    """

    def __init__(self, sentence: str, status: int | None = None, retry_after_s: float = 0.0) -> None:
        super().__init__(sentence)
        self.status = status
        self.retry_after_s = retry_after_s

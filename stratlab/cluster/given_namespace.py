"""The namespace that was given, or left out: told before anything is waited for in one that is not there."""

from __future__ import annotations

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.user_error import UserError


def check_namespace(connection: Connection, namespace: str) -> None:
    """Who may not look at namespaces is believed.

    Raises:
        UserError: there is none of this name.
    """
    try:
        connection.get(f"/api/v1/namespaces/{namespace}")
    except ClusterError as failure:
        if failure.status == 404:
            raise UserError(
                f"-n {namespace}: there is no such namespace ({connection.origin}); that of manifests/ is stratlab "
                "[SL-namespace-unknown]"
            ) from None

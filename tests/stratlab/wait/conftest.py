"""The fake API and the real cluster."""

from tests.stratlab.cluster.conftest import api, cluster, connection

__all__ = ["api", "cluster", "connection"]

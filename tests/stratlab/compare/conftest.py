"""The fake cluster."""

from tests.stratlab.cluster.conftest import api, connection

__all__ = ["api", "connection"]

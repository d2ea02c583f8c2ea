"""The machine that a process runs on."""

from __future__ import annotations

import socket
from collections.abc import Mapping


def read_node(env: Mapping[str, str]) -> str:
    """The name of the machine: that of the cluster's node, which the chart passes on (downward API), or of this
    computer; empty in a pod whose environment does not say, where the host name is the pod's."""
    if env.get("STRATLAB_NODE"):
        return env["STRATLAB_NODE"]
    return "" if env.get("KUBERNETES_SERVICE_HOST") else socket.gethostname()

"""Which machine a rank is on."""

from __future__ import annotations

import socket

import pytest

from trainer.layout.world import read_node


@pytest.mark.parametrize(
    ("env", "node"),
    [
        ({"STRATLAB_NODE": "gpu-node-7", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "gpu-node-7"),
        ({"STRATLAB_NODE": "gpu-node-7"}, "gpu-node-7"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ""),  # the host name is the pod's
        ({"STRATLAB_NODE": ""}, socket.gethostname()),
        ({}, socket.gethostname()),
    ],
)
def test_the_node_is_the_cluster_s_or_this_computer(env: dict[str, str], node: str) -> None:
    assert read_node(env) == node

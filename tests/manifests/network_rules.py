"""What the NetworkPolicies of one namespace let through, by the rules of networking.k8s.io/v1.

Pods of the namespace are given by their labels; everything else by namespace labels and address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.charts.rendering import Document

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Peer:
    """One end of a connection: a pod of this namespace, of another one (`namespace` labels), or just an address."""

    labels: Labels | None = None
    namespace: Labels | None = None
    address: str | None = None


@dataclass(frozen=True)
class Port:
    number: int
    protocol: str = field(default="TCP")


def may_connect(policies: Sequence[Document], source: Peer, target: Peer, port: Port) -> bool:
    """Whether a connection is opened: the source's egress and the target's ingress have to agree."""
    return _passes(policies, "Egress", source, target, port) and _passes(
        policies, "Ingress", target, source, port
    )


def may_enter(policies: Sequence[Document], source: Peer, target: Peer, port: Port) -> bool:
    """Whether the target lets it in, whatever the source is allowed to send: another overlay may allow it more."""
    return _passes(policies, "Ingress", target, source, port)


def _passes(policies: Sequence[Document], way: str, here: Peer, there: Peer, port: Port) -> bool:
    if here.labels is None or here.namespace is not None:
        return True  # not ours to judge
    mine = [
        policy["spec"]
        for policy in policies
        if way in policy["spec"]["policyTypes"] and selects(policy["spec"]["podSelector"], here.labels)
    ]
    if not mine:
        return True
    side = "from" if way == "Ingress" else "to"
    rules = [rule for spec in mine for rule in spec.get(way.lower(), [])]
    return any(_rule_allows(rule, side, there, port) for rule in rules)


def _rule_allows(rule: dict[str, Any], side: str, there: Peer, port: Port) -> bool:
    ports = rule.get("ports")
    if ports and not any(
        p.get("protocol", "TCP") == port.protocol and p["port"] == port.number for p in ports
    ):
        return False
    peers = rule.get(side)
    return not peers or any(_peer_matches(entry, there) for entry in peers)


def _peer_matches(entry: dict[str, Any], there: Peer) -> bool:
    if "ipBlock" in entry:
        if there.address is None:
            return False
        address, block = ipaddress.ip_address(there.address), entry["ipBlock"]
        inside = [ipaddress.ip_network(text) for text in (block["cidr"], *block.get("except", []))]
        return address in inside[0] and not any(address in network for network in inside[1:])
    if there.labels is None:
        return False
    if "namespaceSelector" in entry:
        if not selects(entry["namespaceSelector"], there.namespace or {}):  # {} is every namespace, ours too
            return False
    elif there.namespace is not None:
        return False
    return selects(entry.get("podSelector", {}), there.labels)


def selects(selector: dict[str, Any], labels: Labels) -> bool:
    """A label selector; of the operators, `In` alone is used here.

    Raises:
        AssertionError: another operator.
    """
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In", expression
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return selector.get("matchLabels", {}).items() <= labels.items()

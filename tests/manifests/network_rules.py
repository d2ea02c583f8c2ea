"""What the NetworkPolicies of one namespace let through, by the rules of networking.k8s.io/v1.

Pods of the namespace are given by their labels; everything else by namespace labels and address.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    protocol: str = "TCP"


def may_connect(policies: Sequence[Document], source: Peer, target: Peer, port: Port) -> bool:
    """Whether a connection is opened: the source's egress and the target's ingress have to agree."""
    return _passes(policies, "Egress", source, target, port) and may_enter(policies, source, target, port)


def may_enter(policies: Sequence[Document], source: Peer, target: Peer, port: Port) -> bool:
    """Whether the target lets it in, whatever the source is allowed to send: another overlay may allow it more."""
    return _passes(policies, "Ingress", target, source, port)


def _passes(policies: Sequence[Document], way: str, here: Peer, there: Peer, port: Port) -> bool:
    if here.labels is None or here.namespace is not None:
        return True  # not ours to judge
    specs = [policy["spec"] for policy in policies if way in policy["spec"]["policyTypes"]]
    mine = [spec for spec in specs if selects(spec["podSelector"], here.labels)]
    side = "from" if way == "Ingress" else "to"
    return not mine or any(
        _allows(rule, side, there, port) for spec in mine for rule in spec.get(way.lower(), [])
    )


def _allows(rule: dict[str, Any], side: str, there: Peer, port: Port) -> bool:
    ports = [Port(each["port"], each.get("protocol", "TCP")) for each in rule.get("ports", [])]
    peers = rule.get(side)
    return (not ports or port in ports) and (not peers or any(_matches(entry, there) for entry in peers))


def _matches(entry: dict[str, Any], there: Peer) -> bool:
    if "ipBlock" in entry:
        if there.address is None:
            return False
        address, block = ipaddress.ip_address(there.address), entry["ipBlock"]
        inside = [address in ipaddress.ip_network(text) for text in (block["cidr"], *block.get("except", []))]
        return inside[0] and not any(inside[1:])
    if there.labels is None:
        return False
    if "namespaceSelector" in entry:  # {} is every namespace, ours too
        known = selects(entry["namespaceSelector"], there.namespace or {})
    else:
        known = there.namespace is None
    return known and selects(entry.get("podSelector", {}), there.labels)


def selects(selector: dict[str, Any], labels: Labels) -> bool:
    """A label selector; of the operators, `In` alone is used here."""
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In", expression
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return selector.get("matchLabels", {}).items() <= labels.items()

"""How fast an all-reduce should be at least, by the slowest link that it takes."""

from __future__ import annotations

from trainer.environment.facts import Asked, Facts

NVLINK_SHARE = 0.3
"""Of the GB/s per direction of all NVLinks of a device. nccl-tests reach 0.7 to 0.8 of it with large messages."""
PCIE_SHARE = 0.15
"""Through the memory of the host each byte takes the bus twice, and shares it."""
NETWORK_SHARE = 0.2
"""Of one port: a broken link is slower by an order of magnitude, a shared one by less."""
SOCKET_GB_PER_S = 0.02
"""Over sockets whose speed nobody says, as between pods or processes: less than a fifth of Gigabit Ethernet."""


def expect_bandwidth(asked: Asked, facts: Facts, scope: str) -> tuple[float, str]:
    """GB/s of the bus, and where that comes from; 0.0 where nothing is known of the link.

    Args:
        scope: "all" ranks, or those of one "pod".
    """
    if asked.least_gb_per_s and scope == "all":
        return asked.least_gb_per_s, "as stated"
    between = scope == "all" and asked.nodes > 1
    return _expect_between(facts) if between else _expect_within(facts)


def _expect_within(facts: Facts) -> tuple[float, str]:
    if facts[0]["meeting"]["backend"] != "nccl":
        return SOCKET_GB_PER_S, "processes of one machine"
    devices = [found["device"] for found in facts.values()]
    joins = {join for device in devices for join in device.get("joined", {}).values()}
    links = [device.get("nvlink_gb_per_s") for device in devices]
    lanes = [device.get("pcie_gb_per_s") for device in devices]
    if joins == {"NVLink"} and all(links):
        return NVLINK_SHARE * min(links), f"NVLink of {min(links):.0f} GB/s"
    if all(lanes):
        return PCIE_SHARE * min(lanes), f"PCIe of {min(lanes):.0f} GB/s"
    return 0.0, ""


def _expect_between(facts: Facts) -> tuple[float, str]:
    networks = [found["network"] for found in facts.values() if "gb_per_s" in found.get("network", {})]
    over_ib = "IB" in facts[0].get("transport", {}).get("network", [])
    if over_ib and networks and all(network["ib_gb_per_s"] for network in networks):
        slowest = min(min(network["ib_gb_per_s"]) for network in networks)
        return NETWORK_SHARE * slowest, f"InfiniBand of {slowest:.1f} GB/s"
    speeds = [network["gb_per_s"] for network in networks]
    if speeds and all(speeds):
        return NETWORK_SHARE * min(speeds), f"network of {min(speeds):.2f} GB/s"
    return SOCKET_GB_PER_S, "less than a fifth of Gigabit Ethernet"

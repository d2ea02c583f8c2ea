"""Read in NCCL's own log how data travels: within a node, between nodes, and past the hosts' memory (GPUDirect).

    variables ─▶ hide_log ─▶ NCCL opens its channels ─▶ read_log ─▶ Transport of a rank
    ports of InfiniBand and EFA, NVLinks ─▶ Present ──────────────────┐
    the Transports of all ranks ──────────────────────────────────────┴─▶ find_fall_backs

NCCL opens a channel at the first collective that needs it: the log is complete after a step. A line of a channel names
the transport, not its wire. Whether P2P is NVLink, the graph of the rings tells, else NVSwitch's multicast (NVLS) or
NVML. Whether NET/IB is InfiniBand or RoCE, the list of its devices tells.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OWN = "stratlab-nccl-"
"""Prefix of the name of a log that is not the user's."""
WANTED = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,P2P,SHM,GRAPH"}
FILE = "NCCL_DEBUG_FILE"

LINE = 2000
"""Letters of a line that are read; NCCL's are shorter."""

NVLINK, PCIE, P2P, SHM, SOCKET = "NVLink", "PCIe", "P2P", "SHM", "Socket"
IN_NODE = (NVLINK, PCIE, P2P, SHM)
"""From fast to slow. P2P: over NVLink or PCIe, the log does not tell."""
INFINIBAND, ROCE, EFA = "InfiniBand", "RoCE", "EFA"
OVER_TCP = ("tcp", "sockets")
"""Providers of libfabric that are sockets."""

_CHANNEL = re.compile(r" via ((?:P2P|SHM|NET|COLLNET)/.+?)\s*$", re.MULTILINE)
_NETWORK = re.compile(r"(?:NET|COLLNET)/(?P<plugin>.+?)/(?P<device>\d{1,6})(?:\(\d+\))?(?P<more>/.*)?$")
_VERSION = re.compile(r"NCCL version (\d+(?:\.\d+)+)")
_NODES = re.compile(r"\bnNodes (\d{1,6})")
_RING = re.compile(r"Pattern (?:4|Ring), .*?\btype (\w+)/")
_DEVICES = re.compile(r"NET/IB : Using (.*?);")
_DEVICE = re.compile(r"\[(\d{1,6})\]\S+?:\d+/(IB|RoCE)\b")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w-]+)")
_OVER_NVLINK = {"NVL", "NVB", "C2C"}
_OF_LIBFABRIC = ("Libfabric", "OFI")


@dataclass(frozen=True)
class NcclLog:
    """The file to which NCCL of this process writes; `path` is None if it writes elsewhere."""

    path: Path | None
    is_own: bool = False


@dataclass(frozen=True)
class Transport:
    """The slowest transport of a rank's channels, by their place; "" without one."""

    nccl: str
    """Version of NCCL."""
    in_node: str
    """NVLink, PCIe, P2P, SHM, or a network."""
    between_nodes: str
    """InfiniBand, RoCE, EFA, Socket, NVLink, or a plugin's own name."""
    gpudirect: str
    """Whether the network reads the devices' memory: "yes", "partly" (some channels), "no", "" without a network."""
    via: tuple[str, ...] = ()
    """The channels' words in the log."""


@dataclass(frozen=True)
class Present:
    """Faster ways that a rank's node has and that the user has not switched off."""

    joined: bool = False
    """NVLink joins the rank's device to all others of its pod."""
    rdma: tuple[str, ...] = ()
    """Of InfiniBand and EFA, those with an active port."""


def hide_log(env: MutableMapping[str, str]) -> NcclLog:
    """Send NCCL's choices to a file of this process; a log that the user asked for stays as it is."""
    if "NCCL_DEBUG" in env:
        return NcclLog(_expand(env[FILE]) if env.get(FILE) else None)
    for name, value in WANTED.items():
        env.setdefault(name, value)
    if env.get(FILE):
        return NcclLog(_expand(env[FILE]))
    path = Path(tempfile.gettempdir()) / f"{OWN}{os.getpid()}.log"
    env[FILE] = str(path)
    return NcclLog(path, is_own=True)


def find_own_variables(env: Mapping[str, str]) -> set[str]:
    """Return the names of the variables that `hide_log` has set: they are no choice of the user."""
    if not Path(env.get(FILE, "")).name.startswith(OWN):
        return set()
    return {FILE, *(name for name, value in WANTED.items() if env.get(name) == value)}


def _expand(pattern: str) -> Path:
    """Return the file that NCCL makes of %h (the host without its domain) and %p (the process)."""
    known = {"%h": socket.gethostname().partition(".")[0], "%p": str(os.getpid()), "%%": "%"}
    return Path(re.sub("%[hp%]", lambda found: known[found[0]], pattern))


def read_log(log: NcclLog, joined: Collection[str] = ()) -> Transport | None:
    """Return what the log tells, or None if it names no channel; the process's own file is deleted.

    Args:
        joined: how NVML says that the rank's device is joined to the others of its pod, for logs without a graph.
    """
    if log.path is None:
        return None
    text = ""
    with suppress(OSError, ValueError):  # a name with a zero byte
        text = log.path.read_text(errors="replace")
    if log.is_own:
        with suppress(OSError):
            log.path.unlink()
    whole = text[: text.rfind("\n") + 1]  # NCCL may be writing the last line
    return read_transport("".join(line[:LINE] + "\n" for line in whole.splitlines()), joined)


def read_transport(text: str, joined: Collection[str] = ()) -> Transport | None:
    """Return the transports that the text of a log names; None if it names none."""
    channels = [*dict.fromkeys(_CHANNEL.findall(text))]
    if "NVLS comm 0x" in text:
        channels.append("NVLS")
    if not channels:
        return None
    in_node, between, direct = set[str](), set[str](), set[bool]()
    over = _find_p2p_wire(text, "NVLS" in channels, joined)
    is_one_node = max(map(int, _NODES.findall(text)), default=2) == 1
    for channel in channels:
        if network := _NETWORK.match(channel):
            name = _name_network(network["plugin"], int(network["device"]), text)
            (in_node if is_one_node else between).add(name)
            direct.add("GDRDMA" in (network["more"] or ""))
        elif channel.startswith("P2P/MNNVL") and not is_one_node:
            between.add(NVLINK)
        else:
            in_node.add({"NVLS": NVLINK, "P2P": over}.get(channel.partition("/")[0], SHM))
    version = _VERSION.search(text)
    return Transport(
        nccl=version[1] if version else "",
        in_node=_find_slowest(in_node),
        between_nodes=_find_slowest(between),
        gpudirect="" if not direct else "partly" if len(direct) > 1 else "yes" if True in direct else "no",
        via=tuple(sorted({_shorten(channel) for channel in channels})),
    )


def _find_p2p_wire(text: str, has_multicast: bool, joined: Collection[str]) -> str:
    rings = {*_RING.findall(text)} - {"LOC"}
    if rings:
        return NVLINK if rings <= _OVER_NVLINK else PCIE
    if has_multicast or {*joined} == {NVLINK}:
        return NVLINK
    return PCIE if joined and NVLINK not in joined else P2P


def _name_network(plugin: str, device: int, text: str) -> str:
    if plugin.startswith("IB"):  # IBext_v10: the same devices through NVIDIA's plugin
        layers = {
            int(number): layer for line in _DEVICES.findall(text) for number, layer in _DEVICE.findall(line)
        }
        found = {*layers.values()}
        layer = (
            found.pop() if len(found) == 1 else layers.get(device, "IB")
        )  # merged ports have other numbers
        return ROCE if layer == "RoCE" else INFINIBAND
    if any(word in plugin for word in _OF_LIBFABRIC):
        provider = match[1] if (match := _PROVIDER.search(text)) else ""
        if provider in OVER_TCP:
            return SOCKET
        return EFA if provider.startswith("efa") else f"{plugin} {provider}".strip()
    return plugin


def _find_slowest(names: set[str]) -> str:
    """Return the slowest of the names: a network within a node is slower than SHM, sockets than another network."""
    order = {name: place for place, name in enumerate((*IN_NODE, "", SOCKET))}
    return max(sorted(names), key=lambda name: order.get(name, order[""]), default="")


def _shorten(channel: str) -> str:
    """Return the channel's words without the number of its device."""
    if network := _NETWORK.match(channel):
        return f"NET/{network['plugin']}{'/GDRDMA' if 'GDRDMA' in (network['more'] or '') else ''}"
    return "/".join(channel.split("/")[:2])


@dataclass(frozen=True)
class RdmaPort:
    """An active port of InfiniBand, RoCE or EFA, and its GB/s per direction if known."""

    kind: str
    gb_per_s: float | None


IB_RATE = re.compile(r"([\d.]+) Gb/sec")
AMAZON = "0x1d0f"
"""PCI vendor of EFA's devices."""


def read_rdma_ports(sys: Path = Path("/sys/class")) -> list[RdmaPort]:
    """Return the node's active ports; a pod sees them even if it may not use them."""
    found = []
    for port in sorted((sys / "infiniband").glob("*/ports/*")):
        with suppress(OSError):
            if "ACTIVE" not in (port / "state").read_text():
                continue
            rate = IB_RATE.search(_read_word(port / "rate"))
            kind = {"InfiniBand": INFINIBAND, "Ethernet": ROCE}.get(_read_word(port / "link_layer"), "")
            if _read_word(port.parents[1] / "device" / "vendor") == AMAZON:
                kind = EFA
            found.append(RdmaPort(kind, float(rate[1]) / 8 if rate else None))
    return found


def _read_word(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""


def find_present(ports: Sequence[RdmaPort], joined: Collection[str], env: Mapping[str, str]) -> Present:
    """Return the faster ways of a node. RoCE does not count: its port may be the pods' own Ethernet.

    Args:
        joined: how NVML says that the rank's device is joined to the others of its pod.
        env: a way that NCCL's variables switch off is not missed.
    """
    no_rdma = env.get("NCCL_IB_DISABLE", "0") not in ("", "0") or env.get("NCCL_NET") == SOCKET
    no_p2p = env.get("NCCL_P2P_DISABLE", "0") not in ("", "0") or env.get("NCCL_P2P_LEVEL") in ("LOC", "0")
    kinds = {port.kind for port in ports} & {INFINIBAND, EFA}
    return Present(
        joined={*joined} == {NVLINK} and not no_p2p,
        rdma=() if no_rdma else tuple(sorted(kinds)),
    )


def find_fall_backs(ranks: Sequence[tuple[Transport | None, Present]]) -> list[str]:
    """Return for each rank why its transport is a fall-back, "" if it is none or unknown."""
    fast = sorted({found.between_nodes for found, _ in ranks if found} & {INFINIBAND, ROCE, EFA})
    return [_explain(found, present, fast) if found else "" for found, present in ranks]


def _explain(found: Transport, present: Present, fast: Sequence[str]) -> str:
    reasons = []
    if found.between_nodes == SOCKET and present.rdma:
        reasons.append(f"Socket between nodes, but the node has {' and '.join(present.rdma)}")
    elif found.between_nodes == SOCKET and fast:
        reasons.append(f"Socket between nodes, but other ranks use {' and '.join(fast)}")
    if found.in_node not in ("", NVLINK, P2P) and present.joined:
        reasons.append(f"{found.in_node} within the node, but NVLink joins its devices")
    return "; ".join(reasons)


FIX = "check its plugin, run.rdma and the pods' devices (docs/multi_node.md)"


MOST_NAMED = 8
"""Ranks that a sentence names."""


def name_fall_backs(reasons: Sequence[str]) -> list[str]:
    """Return for each reason of `find_fall_backs` its words, with its ranks."""
    ranks = {each: [rank for rank, other in enumerate(reasons) if other == each] for each in reasons if each}
    return [f"{reason}: {_name_ranks(found, len(reasons))}" for reason, found in ranks.items()]


def _name_ranks(ranks: Sequence[int], world_size: int) -> str:
    if len(ranks) == world_size:
        return "all ranks"
    more = f" and {len(ranks) - MOST_NAMED} more" if len(ranks) > MOST_NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:MOST_NAMED]))}{more}"


def say_fall_back(named: str) -> str:
    """Return the warning about one of `name_fall_backs`."""
    return f"NCCL uses {named} [SL-transport-fell-back]"


def describe_transport(ranks: Sequence[Transport | None]) -> str:
    """Return the transports of all ranks in words."""
    known = [each for each in ranks if each]
    if not known:
        return f"transport unknown, its log names none: unset NCCL_DEBUG, or set it to INFO with {FILE}"
    places = {
        "within a node": {each.in_node for each in known},
        "between nodes": {each.between_nodes for each in known},
    }
    words = [f"{', '.join(sorted(names - {''}))} {place}" for place, names in places.items() if names - {""}]
    direct = {each.gpudirect for each in known} - {""}
    return ", ".join([*words, *([f"GPUDirect {', '.join(sorted(direct))}"] if direct else [])])


SUMMED_UP = ("transport_in_node", "transport_between_nodes", "gpudirect", "transport_fell_back")
"""Names in summary.json."""


def sum_up_transports(ranks: Sequence[Mapping[str, Any] | None]) -> dict[str, str | None]:
    """Return the slowest transport of all ranks by the names of SUMMED_UP; all None unless every rank knows its own.

    Args:
        ranks: `transport` of each rank's facts.
    """
    known = [each for each in ranks if each]
    if not known or len(known) < len(ranks):
        return dict.fromkeys(SUMMED_UP)
    in_node, between, direct = (
        {each[name] for each in known if each[name]} for name in ("in_node", "between_nodes", "gpudirect")
    )
    values = (
        _find_slowest(in_node),
        _find_slowest(between),
        "partly" if len(direct) > 1 else "".join(direct),
        "; ".join(name_fall_backs([each["fell_back"] or "" for each in known])),
    )
    return {name: value or None for name, value in zip(SUMMED_UP, values, strict=True)}

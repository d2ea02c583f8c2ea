"""How fast an all-reduce should be at least, by the slowest link that it takes.

Whether ranks reach each other, by what, and as fast as that should be.

Shared memory, the results volume, files that ranks show each other, and clocks: what they must have at least.

From what all ranks have posted to the findings, without torch; here ranks, versions and devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainer.environment.board import (
    PROBLEM,
    STOPPED,
    Asked,
    Facts,
    Finding,
    find_firsts,
    join_names,
    name_rank,
    read_error,
)

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


FIXES = {
    "nccl": "the link itself (nvidia-smi topo -m, ibstat, ethtool), NCCL_SOCKET_IFNAME, NCCL_IB_HCA",
    "gloo": "the link itself (ethtool, ip -s link), GLOO_SOCKET_IFNAME, what else keeps the machines busy",
}
"""Where an all-reduce is slow."""
FAILED_FIXES = {
    "nccl": "NCCL_DEBUG=INFO, addresses and ports between the pods, /dev/shm",
    "gloo": "addresses and ports between the pods or processes, GLOO_SOCKET_IFNAME",
}


def judge_network(asked: Asked, facts: Facts) -> Iterator[Finding]:
    failed = False
    for rank, found in sorted(facts.items()):
        for name in ("clock", "files of the others", "all-reduce"):
            if error := read_error(found, name):
                failed = True
                fix = FAILED_FIXES[found["meeting"]["backend"]]
                seen = f"{name_rank(rank, facts)}: {name} failed: {error} [SL-exchange-failed]"
                yield Finding(PROBLEM, "network", seen, fix)
                break
    first = facts.get(0, {})
    sizes = first.get("all-reduce", {})
    if failed or "all" not in sizes:
        return
    backend = first["meeting"]["backend"]
    words = {word for found in facts.values() for word in _describe_transport(found.get("transport", {}))}
    how = f"{backend}{' over ' + join_names(words) if words else ''}"
    if asked.ranks == 1:
        yield Finding("ok", "all-reduce", f"{how}: one rank, nothing to send")
        return
    for scope, table in sizes.items():
        least, reason = expect_bandwidth(asked, facts, scope)
        reached = table[-1]["gb_per_s"]  # a small message may pass a slow link in one burst
        text = ", ".join(f"{_format_mib(row['mib'])} {row['gb_per_s']:.3g} GB/s" for row in table)
        where = f"{asked.ranks} ranks" if scope == "all" else f"the {asked.per_node} ranks of a pod"
        subject = "all-reduce" if scope == "all" else "within a pod"
        seen = f"{where} by {how}: {text}"
        if least and reached < least:
            seen += f"; expected at least {least:.3g} GB/s ({reason}) [SL-link-slow]"
            yield Finding(PROBLEM, subject, seen, FIXES[backend])
        else:
            yield Finding("ok", subject, seen + (f" (at least {least:.3g} expected)" if least else ""))


def _describe_transport(chosen: Mapping[str, Any]) -> list[str]:
    return [*chosen.get("via", []), *(f"network {name}" for name in chosen.get("network", []))]


def _format_mib(mib: float) -> str:
    return f"{mib:.0f} MiB" if mib >= 1 else f"{mib * 1024:.0f} KiB"


SHM_GIB = 0.1
"""Of shared memory that is free, for each rank of a pod: a container without a volume there has 0.0625 in all."""
FREE_GIB = 1.0
SLOW_MB_PER_S = 5.0
CLOCK_S = 1.0
VOLUME_CLOCK_S = 5.0


def judge_shared_memory(asked: Asked, facts: Facts) -> Iterator[Finding]:
    needed = SHM_GIB * asked.per_node
    fix = "run.sharedMemory.sizeLimit in the charts, --shm-size=1g for docker"
    free = []
    for found in find_firsts(facts, "shared memory"):
        shm = found["shared memory"]
        if error := read_error(found, "shared memory"):
            seen = f"pod {found['pod']}: /dev/shm cannot be written: {error} [SL-shm-unwritable]"
            yield Finding(PROBLEM, "shared memory", seen, fix)
        elif shm["free_gib"] < needed:
            seen = f"pod {found['pod']}: {shm['free_gib'] * 1024:.0f} of {shm['gib'] * 1024:.0f} MiB free in /dev/shm"
            yield Finding(
                PROBLEM,
                "shared memory",
                f"{seen}, {needed * 1024:.0f} are needed for {asked.per_node} rank(s) [SL-shm-small]",
                fix,
            )
        else:
            free.append(shm["free_gib"])
    if free and len(free) == len([*find_firsts(facts, "shared memory")]):
        yield Finding("ok", "shared memory", f"{min(free):.1f} GiB free in /dev/shm")


def _format_gib(gib: float) -> str:
    """With a unit in which little room is not 0.00."""
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * 1024:.2f} MiB"


def judge_volume(asked: Asked, facts: Facts) -> Iterator[Finding]:
    subject, good = "results volume", []
    for found in find_firsts(facts, subject):
        volume, where = found[subject], f"pod {found['pod']}: {asked.results}"
        room = (
            f", {_format_gib(volume['free_gib'])} of {_format_gib(volume['gib'])} free"
            if "gib" in volume
            else ""
        )
        if error := read_error(found, subject):
            fix = "free space (stratlab remove, or a larger claim); its owner or fsGroup, where that is not allowed"
            seen = f"{where} cannot be written: {error}{room} [SL-volume-unwritable]"
            yield Finding(PROBLEM, subject, seen, fix)
        elif volume["free_gib"] < FREE_GIB:
            fix = "checkpoints, traces and weights need room: stratlab remove, or a larger claim"
            yield Finding(
                PROBLEM,
                subject,
                f"{where}: {_format_gib(volume['free_gib'])} free, {FREE_GIB:.0f} GiB are needed [SL-volume-small]",
                fix,
            )
        elif volume["mb_per_s"] < SLOW_MB_PER_S:
            seen = f"{where}: {volume['mb_per_s']:.1f} MB/s written [SL-volume-slow]"
            yield Finding(
                "warning",
                subject,
                seen,
                "checkpoints will take long: a faster StorageClass, or checkpoint_minutes",
            )
        else:
            good.append(volume)
    if good and len(good) == len([*find_firsts(facts, subject)]):
        free, speed = min(each["free_gib"] for each in good), min(each["mb_per_s"] for each in good)
        yield Finding("ok", subject, f"{asked.results}: {free:.1f} GiB free, {speed:.0f} MB/s written")


def judge_files(facts: Facts) -> Iterator[Finding]:
    found = {
        rank: each["files of the others"]
        for rank, each in sorted(facts.items())
        if "files of the others" in each
    }
    blind = {rank: each["unseen"] for rank, each in found.items() if each.get("unseen")}
    for rank, unseen in blind.items():
        fix = "one claim for all pods, of a StorageClass whose ReadWriteMany volumes are really shared"
        seen = f"{name_rank(rank, facts)} does not see what rank(s) {join_names(unseen)} wrote on the results volume"
        seen += " [SL-files-unseen]"
        yield Finding(PROBLEM, "shared files", seen, fix)
    if (
        not blind
        and len(found) > 1
        and not any(each.get("unwritten") or each.get("error") for each in found.values())
    ):
        longest = max(each["after_s"] for each in found.values())
        yield Finding(
            "ok", "shared files", f"each rank sees those of the others, after {longest:.1f} s at most"
        )


def judge_clocks(facts: Facts) -> Iterator[Finding]:
    fix = "the time service of the node (chrony, systemd-timesyncd)"
    seen, wrong = [], False
    for rank, found in sorted(facts.items()):
        clock = found.get("clock", {})
        if "offset_s" in clock and rank and not found["local_rank"]:  # one of each pod
            seen.append(abs(clock["offset_s"]))
            if abs(clock["offset_s"]) - clock["within_s"] > CLOCK_S:
                wrong = True
                text = f"{name_rank(rank, facts)}: {_describe_offset(clock['offset_s'])} rank 0 [SL-clock-of-rank]"
                yield Finding(PROBLEM, "clock", text, fix)
        volume = found.get("results volume", {})
        if "clock_s" in volume and abs(volume["clock_s"]) - volume["clock_within_s"] > VOLUME_CLOCK_S:
            wrong = True
            text = (
                f"pod {found['pod']}: {_describe_offset(-volume['clock_s'])} the results volume's "
                "[SL-clock-of-volume]"
            )
            yield Finding(PROBLEM, "clock", text, fix)
    if not wrong and facts:
        between = f"pods within {max(seen) * 1e3:.0f} ms" if seen else "one machine"
        yield Finding("ok", "clock", f"{between}, and that of the results volume")


def _describe_offset(seconds: float) -> str:
    return f"its clock is {abs(seconds):.1f} s {'before' if seconds > 0 else 'behind'}"


FREE_SHARE = 0.9
"""Of a device's memory: with less somebody else is on it."""


def judge(
    asked: Asked,
    facts: Facts,
    stages: Mapping[int, str],
    refusals: Mapping[str, str] = {},
    ends: Mapping[int, str] = {},
) -> list[Finding]:
    """All findings, in the order of the table.

    Args:
        facts: what each rank has posted; {} or missing for one that has not.
        stages: what each rank was at when it was last heard of, "done" of one that has finished.
        refusals: pod -> why its processes would find no accelerator each.
        ends: rank -> how it ended, of those that ended otherwise than well.
    """
    return [
        *_judge_ranks(asked, facts, stages, ends),
        *_judge_versions(facts),
        *_judge_devices(asked, facts, refusals),
        *judge_shared_memory(asked, facts),
        *judge_volume(asked, facts),
        *judge_files(facts),
        *judge_clocks(facts),
        *judge_network(asked, facts),
    ]


def _judge_ranks(
    asked: Asked, facts: Facts, stages: Mapping[int, str], ends: Mapping[int, str]
) -> Iterator[Finding]:
    lost = [rank for rank in range(asked.ranks) if stages.get(rank) != "done" and ends.get(rank) != STOPPED]
    together: dict[str, list[int]] = {}
    for rank in lost:
        at = f"came no further than {stages[rank]!r}" if rank in stages else "said nothing"
        end = ends.get(rank) or f"within {asked.limit_s:.0f} s"
        together.setdefault(f"{at}, {end}", []).append(rank)
    for seen, ranks in together.items():
        fix = "its log says more; one that is killed may lack memory, one that hangs waits for its device or its peers"
        named = ", ".join(name_rank(rank, facts) for rank in ranks)
        yield Finding(PROBLEM, "ranks", f"{named} {seen} [SL-rank-not-done]", fix)
    apart = {rank: error for rank, found in sorted(facts.items()) if (error := read_error(found, "meeting"))}
    for rank, error in apart.items() if not lost else ():  # else they are who waited
        fix = "addresses and ports between the pods: network policies, GLOO_SOCKET_IFNAME"
        seen = f"{name_rank(rank, facts)} has not met the others: {error} [SL-rank-apart]"
        yield Finding(PROBLEM, "ranks", seen, fix)
    if not lost and not apart and asked.ranks == len(facts):
        where = f"on {join_names({found['node'] or found['host'] for found in facts.values()})}"
        yield Finding("ok", "ranks", f"{asked.ranks} in {asked.nodes} pod(s), {where}")


def _judge_versions(facts: Facts) -> Iterator[Finding]:
    found = {rank: each["versions"] for rank, each in facts.items() if not read_error(each, "versions")}
    if not found:
        return
    names = [name for name in next(iter(found.values())) if any(each.get(name) for each in found.values())]
    drivers = {rank: text for rank, each in facts.items() if (text := each.get("device", {}).get("driver"))}
    columns = {name: {rank: each.get(name, "") for rank, each in found.items()} for name in names}
    columns |= {"driver": drivers} if drivers else {}
    differ = {name: column for name, column in columns.items() if len({*column.values()}) > 1}
    for name, column in differ.items():
        seen = ", ".join(
            f"{value or 'none'} on ranks {join_names(_who(column, value))}" for value in {*column.values()}
        )
        if name == "driver":
            seen = f"{name} differs: {seen} [SL-drivers-differ]"
            yield Finding("warning", "versions", seen, "one driver for all nodes")
        else:
            seen = f"{name} differs: {seen} [SL-versions-differ]"
            yield Finding(PROBLEM, "versions", seen, "one image for all pods")
    if not differ:
        yield Finding(
            "ok",
            "versions",
            ", ".join(f"{name} {next(iter(column.values()))}" for name, column in columns.items()),
        )


def _judge_devices(asked: Asked, facts: Facts, refusals: Mapping[str, str]) -> Iterator[Finding]:
    subject, wrong = "devices", False
    for pod, sentence in sorted(refusals.items()):
        wrong = True
        seen, _, fix = sentence.partition("; ")
        yield Finding(PROBLEM, subject, f"pod {pod}: {seen}", fix)
    uuids: dict[str, int] = {}
    for rank, found in sorted(facts.items()):
        device = found.get("device", {})
        if error := read_error(found, "device"):
            wrong = True
            yield Finding(
                PROBLEM,
                subject,
                f"{name_rank(rank, facts)}: its device fails: {error} [SL-device-fails]",
                "the node's driver, nvidia-smi, dmesg",
            )
        elif device.get("type") == "none" and found["pod"] not in refusals:
            wrong = True
            seen = f"{name_rank(rank, facts)}: {device['visible']} device(s) visible for {asked.per_node} processes"
            seen += " [SL-no-device-left]"
            yield Finding(
                PROBLEM, subject, seen, "one device per process: ask for more devices or for fewer processes"
            )
        elif (uuid := device.get("uuid")) and uuids.setdefault(uuid, rank) != rank:
            wrong = True
            yield Finding(
                PROBLEM,
                subject,
                f"ranks {uuids[uuid]} and {rank} have the same device {uuid} [SL-device-shared]",
                "CUDA_VISIBLE_DEVICES",
            )
        if device.get("gib") and device["free_gib"] < FREE_SHARE * device["gib"]:
            wrong = True
            room = f"{device['free_gib']:.1f} of {device['gib']:.1f} GiB free"
            seen = f"{name_rank(rank, facts)}: {room} [SL-device-taken]"
            yield Finding("warning", subject, seen, "somebody else is on it: nvidia-smi says who")
    names = {device["name"] for each in facts.values() if (device := each.get("device", {})).get("name")}
    if len(names) > 1:
        wrong = True
        yield Finding(
            "warning",
            subject,
            f"they differ: {join_names(names)} [SL-devices-differ]",
            "steps take as long as on the slowest: run.scheduling.nodeSelector",
        )
    if not wrong and names:
        free = [each["device"]["free_gib"] for each in facts.values() if "free_gib" in each.get("device", {})]
        memory = f", {min(free):.1f} GiB free" if free else "; no accelerator is visible"
        yield Finding("ok", subject, f"{len(facts)} x {join_names(names)}{memory}{_describe_joins(facts)}")


def _describe_joins(facts: Facts) -> str:
    joins = {join for each in facts.values() for join in each.get("device", {}).get("joined", {}).values()}
    return f", joined by {join_names(joins)}" if joins else ""


def _who(column: Mapping[int, str], value: str) -> list[int]:
    return [rank for rank, each in column.items() if each == value]

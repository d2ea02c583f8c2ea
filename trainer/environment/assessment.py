"""Turn the facts of all ranks into the findings of the table, without torch.

`judge` calls one function per subject, in the order of the table. The slowest link of an all-reduce decides about the
bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stratlab_spec.findings import Finding
from trainer.distributed.nccl_transport import (
    FIX,
    INFINIBAND,
    ROCE,
    Present,
    Transport,
    describe_transport,
    find_fall_backs,
    name_fall_backs,
    say_fall_back,
)
from trainer.environment.findings import (
    STOPPED,
    Asked,
    Facts,
    find_firsts,
    join_names,
    name_rank,
    ok,
    problem,
    read_error,
    warning,
)

FREE_SHARE = 0.9
"""Share of a device's memory that must be free; with less, another process uses the device."""
SHM_GIB = 0.1
"""Free shared memory that each rank of a pod needs; a container without a volume there has 0.0625 in total."""
FREE_GIB = 1.0
SLOW_MB_PER_S = 5.0
CLOCK_S = 1.0
VOLUME_CLOCK_S = 5.0
NVLINK_SHARE = 0.3
"""Share of the GB/s per direction of all NVLinks of a device. nccl-tests reach 0.7 to 0.8 of it with large messages."""
PCIE_SHARE = 0.15
"""Share of the bus; through host memory each byte crosses the shared bus twice."""
NETWORK_SHARE = 0.2
"""Share of one port: a broken link is slower by an order of magnitude, a shared one by less."""
SOCKET_GB_PER_S = 0.02
"""For sockets of unknown speed, as between pods or processes: less than a fifth of Gigabit Ethernet."""
SLOW_FIXES = {
    "nccl": "check the link (nvidia-smi topo -m, ibstat, ethtool), NCCL_SOCKET_IFNAME, NCCL_IB_HCA",
    "gloo": "check the link (ethtool, ip -s link), GLOO_SOCKET_IFNAME, and other load on the machines",
}
FAILED_FIXES = {
    "nccl": "set NCCL_DEBUG=INFO; check addresses and ports between the pods, /dev/shm",
    "gloo": "check addresses and ports between the pods or processes, GLOO_SOCKET_IFNAME",
}


def judge(
    asked: Asked,
    facts: Facts,
    stages: Mapping[int, str],
    refusals: Mapping[str, str] = {},
    ends: Mapping[int, str] = {},
) -> list[Finding]:
    """Return all findings, in the order of the table.

    Args:
        facts: the posted facts of each rank; {} or missing for a rank without facts.
        stages: the last known stage of each rank, "done" for a finished one.
        refusals: pod -> the reason why its processes lack an accelerator each.
        ends: rank -> its end, for ranks that failed or were stopped.
    """
    return [
        *_judge_ranks(asked, facts, stages, ends),
        *_judge_versions(facts),
        *_judge_devices(asked, facts, refusals),
        *_judge_shared_memory(asked, facts),
        *_judge_volume(asked, facts),
        *_judge_files(facts),
        *_judge_clocks(facts),
        *_judge_network(asked, facts),
    ]


def _judge_ranks(
    asked: Asked, facts: Facts, stages: Mapping[int, str], ends: Mapping[int, str]
) -> Iterator[Finding]:
    lost: dict[str, list[int]] = {}
    for rank in range(asked.ranks):
        if stages.get(rank) != "done" and ends.get(rank) != STOPPED:
            at = f"did not finish {stages[rank]!r}" if rank in stages else "did not report"
            end = ends.get(rank) or f"limit {asked.limit_s:.0f} s"
            lost.setdefault(f"{at}, {end}", []).append(rank)
    for seen, ranks in lost.items():
        fix = "read its log; a killed rank may lack memory, a hanging rank waits for its device or its peers"
        named = ", ".join(name_rank(rank, facts) for rank in ranks)
        yield problem("ranks", f"{named} {seen} [SL-rank-not-done]", fix)
    apart = {rank: error for rank, found in sorted(facts.items()) if (error := read_error(found, "meeting"))}
    for rank, error in apart.items() if not lost else ():  # else they only waited for the lost ranks
        fix = "check addresses and ports between the pods: network policies, GLOO_SOCKET_IFNAME"
        yield problem(
            "ranks", f"{name_rank(rank, facts)} did not reach the others: {error} [SL-rank-apart]", fix
        )
    if not lost and not apart and asked.ranks == len(facts):
        where = f"on {join_names({found['node'] or found['host'] for found in facts.values()})}"
        yield ok("ranks", f"{asked.ranks} in {asked.nodes} pod(s), {where}")


def _judge_versions(facts: Facts) -> Iterator[Finding]:
    found = {rank: each["versions"] for rank, each in facts.items() if not read_error(each, "versions")}
    if not found:
        return
    columns = {
        name: {rank: each.get(name, "") for rank, each in found.items()}
        for name in next(iter(found.values()))
    }
    columns["driver"] = {
        rank: text for rank, each in facts.items() if (text := each.get("device", {}).get("driver"))
    }
    columns = {name: column for name, column in columns.items() if any(column.values())}
    differ = {name: {*column.values()} for name, column in columns.items() if len({*column.values()}) > 1}
    for name, values in differ.items():
        ranks = {value: [rank for rank, each in columns[name].items() if each == value] for value in values}
        seen = ", ".join(f"{value or 'none'} on ranks {join_names(ranks[value])}" for value in values)
        if name == "driver":
            seen = f"driver differs: {seen} [SL-drivers-differ]"
            yield warning("versions", seen, "use one driver for all nodes")
        else:
            yield problem(
                "versions", f"{name} differs: {seen} [SL-versions-differ]", "use one image for all pods"
            )
    if not differ:
        yield ok(
            "versions", ", ".join(f"{name} {next(iter(column.values()))}" for name, column in columns.items())
        )


def _judge_devices(asked: Asked, facts: Facts, refusals: Mapping[str, str]) -> Iterator[Finding]:
    wrong = [*_wrong_devices(asked, facts, refusals)]
    yield from wrong
    devices = [each.get("device", {}) for each in facts.values()]
    names = {device["name"] for device in devices if device.get("name")}
    if not wrong and names:
        free = [device["free_gib"] for device in devices if "free_gib" in device]
        memory = f", {min(free):.1f} GiB free" if free else "; no accelerator is visible"
        joins = {join for device in devices for join in device.get("joined", {}).values()}
        joined = f", joined by {join_names(joins)}" if joins else ""
        yield ok("devices", f"{len(facts)} x {join_names(names)}{memory}{joined}")


def _wrong_devices(asked: Asked, facts: Facts, refusals: Mapping[str, str]) -> Iterator[Finding]:
    subject, uuids, names = "devices", dict[str, int](), set[str]()
    for pod, sentence in sorted(refusals.items()):
        seen, _, fix = sentence.partition("; ")
        yield problem(subject, f"pod {pod}: {seen}", fix)
    for rank, found in sorted(facts.items()):
        device, named = found.get("device", {}), name_rank(rank, facts)
        if error := read_error(found, "device"):
            fix = "check the node's driver, nvidia-smi, dmesg"
            yield problem(subject, f"{named}: its device fails: {error} [SL-device-fails]", fix)
        elif device.get("type") == "none" and found["pod"] not in refusals:
            seen = f"{named}: {device['visible']} device(s) visible for {asked.per_node} processes"
            fix = "use one device per process: request more devices or fewer processes"
            yield problem(subject, f"{seen} [SL-no-device-left]", fix)
        elif (uuid := device.get("uuid")) and uuids.setdefault(uuid, rank) != rank:
            seen = f"ranks {uuids[uuid]} and {rank} have the same device {uuid} [SL-device-shared]"
            yield problem(subject, seen, "check CUDA_VISIBLE_DEVICES")
        if device.get("gib") and device["free_gib"] < FREE_SHARE * device["gib"]:
            seen = f"{named}: {device['free_gib']:.1f} of {device['gib']:.1f} GiB free [SL-device-taken]"
            yield warning(subject, seen, "another process uses it: nvidia-smi shows which")
        names |= {device["name"]} if device.get("name") else set()
    if len(names) > 1:
        fix = "the slowest sets the time of a step: choose nodes with run.scheduling.nodeSelector"
        yield warning(subject, f"devices differ: {join_names(names)} [SL-devices-differ]", fix)


def _judge_shared_memory(asked: Asked, facts: Facts) -> Iterator[Finding]:
    subject, needed, free, wrong = "shared memory", SHM_GIB * asked.per_node, [], False
    for found in find_firsts(facts, subject):
        shm, seen = found[subject], ""
        if error := read_error(found, subject):
            seen = f"/dev/shm cannot be written: {error} [SL-shm-unwritable]"
        elif shm["free_gib"] < needed:
            seen = (
                f"{shm['free_gib'] * 1024:.0f} of {shm['gib'] * 1024:.0f} MiB free in /dev/shm, "
                f"{needed * 1024:.0f} are needed for {asked.per_node} rank(s) [SL-shm-small]"
            )
        else:
            free.append(shm["free_gib"])
        if seen:
            wrong = True
            fix = "set run.sharedMemory.sizeLimit in the charts, --shm-size=1g for docker"
            yield problem(subject, f"pod {found['pod']}: {seen}", fix)
    if free and not wrong:
        yield ok(subject, f"{min(free):.1f} GiB free in /dev/shm")


def _judge_volume(asked: Asked, facts: Facts) -> Iterator[Finding]:
    subject, good, wrong = "results volume", [], False
    for found in find_firsts(facts, subject):
        volume, where = found[subject], f"pod {found['pod']}: {asked.results}"
        if error := read_error(found, subject):
            room = ""
            if "gib" in volume:
                room = f", {_format_gib(volume['free_gib'])} of {_format_gib(volume['gib'])} free"
            fix = "free space (stratlab remove) or use a larger claim; if access is denied, check its owner or fsGroup"
            finding = problem(
                subject, f"{where} cannot be written: {error}{room} [SL-volume-unwritable]", fix
            )
        elif volume["free_gib"] < FREE_GIB:
            seen = f"{_format_gib(volume['free_gib'])} free, {FREE_GIB:.0f} GiB are needed [SL-volume-small]"
            fix = "checkpoints, traces and weights need space: stratlab remove, or a larger claim"
            finding = problem(subject, f"{where}: {seen}", fix)
        elif volume["mb_per_s"] < SLOW_MB_PER_S:
            seen = f"{where}: {volume['mb_per_s']:.1f} MB/s written [SL-volume-slow]"
            fix = "checkpoints will be slow: use a faster StorageClass, or raise checkpoint_minutes"
            finding = warning(subject, seen, fix)
        else:
            good.append(volume)
            continue
        wrong = True
        yield finding
    if good and not wrong:
        free, speed = min(each["free_gib"] for each in good), min(each["mb_per_s"] for each in good)
        yield ok(subject, f"{asked.results}: {free:.1f} GiB free, {speed:.0f} MB/s written")


def _format_gib(gib: float) -> str:
    """Format with a unit in which small sizes are not 0.00."""
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * 1024:.2f} MiB"


def _judge_files(facts: Facts) -> Iterator[Finding]:
    name = "files of the others"
    found = {rank: each[name] for rank, each in sorted(facts.items()) if name in each}
    blind = {rank: each["unseen"] for rank, each in found.items() if each.get("unseen")}
    for rank, unseen in blind.items():
        seen = f"{name_rank(rank, facts)} cannot read the files of rank(s) {join_names(unseen)} on the results volume"
        fix = "use one claim for all pods, from a StorageClass with truly shared ReadWriteMany volumes"
        yield problem("shared files", f"{seen} [SL-files-unseen]", fix)
    failed = any(each.get("unwritten") or each.get("error") for each in found.values())
    if not blind and not failed and len(found) > 1:
        longest = max(each["after_s"] for each in found.values())
        yield ok("shared files", f"each rank reads the other ranks' files within {longest:.1f} s")


def _judge_clocks(facts: Facts) -> Iterator[Finding]:
    offsets, wrong = [], []
    for rank, found in sorted(facts.items()):
        clock, volume = found.get("clock", {}), found.get("results volume", {})
        if "offset_s" in clock and rank and not found["local_rank"]:  # one per pod
            offsets.append(abs(clock["offset_s"]))
            if abs(clock["offset_s"]) - clock["within_s"] > CLOCK_S:
                offset = _describe_offset(clock["offset_s"])
                wrong.append(f"{name_rank(rank, facts)}: {offset} rank 0 [SL-clock-of-rank]")
        if "clock_s" in volume and abs(volume["clock_s"]) - volume["clock_within_s"] > VOLUME_CLOCK_S:
            offset = _describe_offset(-volume["clock_s"])
            wrong.append(f"pod {found['pod']}: {offset} the results volume's [SL-clock-of-volume]")
    for seen in wrong:
        yield problem("clock", seen, "check the node's time service (chrony, systemd-timesyncd)")
    if not wrong and facts:
        between = f"pods within {max(offsets) * 1e3:.0f} ms" if offsets else "one machine"
        yield ok("clock", f"{between}; the results volume agrees")


def _describe_offset(seconds: float) -> str:
    return f"its clock is {abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'}"


def _judge_network(asked: Asked, facts: Facts) -> Iterator[Finding]:
    failed = False
    for rank, found in sorted(facts.items()):
        names = ("clock", "files of the others", "all-reduce")
        for name, error in [(name, error) for name in names if (error := read_error(found, name))][:1]:
            failed = True
            seen = f"{name_rank(rank, facts)}: {name} failed: {error} [SL-exchange-failed]"
            yield problem("network", seen, FAILED_FIXES[found["meeting"]["backend"]])
    first = facts.get(0, {})
    sizes = first.get("all-reduce", {})
    if failed or "all" not in sizes:
        return
    how = backend = first["meeting"]["backend"]
    if ways := read_transports(facts):
        how += f": {describe_transport([found for found, _ in ways])}"
        for named in name_fall_backs(find_fall_backs(ways)):
            yield warning("network", say_fall_back(named), FIX)
    if asked.ranks == 1:
        yield ok("all-reduce", f"{how}: one rank, nothing to send")
        return
    for scope, table in sizes.items():
        least, reason = expect_bandwidth(asked, facts, scope)
        text = ", ".join(f"{_format_mib(row['mib'])} {row['gb_per_s']:.3g} GB/s" for row in table)
        subject, where = "all-reduce", f"{asked.ranks} ranks"
        if scope == "pod":
            subject, where = "within a pod", f"the {asked.per_node} ranks of a pod"
        seen = f"{where} by {how}: {text}"
        if least and table[-1]["gb_per_s"] < least:  # a small message may cross a slow link in one burst
            seen += f"; expected at least {least:.3g} GB/s ({reason}) [SL-link-slow]"
            yield problem(subject, seen, SLOW_FIXES[backend])
        else:
            yield ok(subject, seen + (f" (at least {least:.3g} expected)" if least else ""))


def read_transports(facts: Facts) -> list[tuple[Transport | None, Present]]:
    """Return the transport of each rank and its faster ways; empty unless all ranks have posted them."""
    posted = [facts[rank].get("transport", {}) for rank in sorted(facts)]
    if not posted or any("found" not in each for each in posted):
        return []
    return [
        (Transport(**each["found"]) if each["found"] else None, Present(**each["present"])) for each in posted
    ]


def _format_mib(mib: float) -> str:
    return f"{mib:.0f} MiB" if mib >= 1 else f"{mib * 1024:.0f} KiB"


def expect_bandwidth(asked: Asked, facts: Facts, scope: str) -> tuple[float, str]:
    """Return the GB/s that the bus should reach, and their origin; 0.0 for unknown links.

    Args:
        scope: "all" ranks, or the ranks of one "pod".
    """
    if asked.least_gb_per_s and scope == "all":
        return asked.least_gb_per_s, "as stated"
    if scope == "all" and asked.nodes > 1:
        return _expect_between_pods(facts)
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


def _expect_between_pods(facts: Facts) -> tuple[float, str]:
    networks: list[Mapping[str, Any]] = [
        found["network"] for found in facts.values() if "gb_per_s" in found.get("network", {})
    ]
    over_ib = any(found and found.between_nodes in (INFINIBAND, ROCE) for found, _ in read_transports(facts))
    if over_ib and networks and all(network["ib_gb_per_s"] for network in networks):
        slowest = min(min(network["ib_gb_per_s"]) for network in networks)
        return NETWORK_SHARE * slowest, f"InfiniBand of {slowest:.1f} GB/s"
    speeds = [network["gb_per_s"] for network in networks]
    if speeds and all(speeds):
        return NETWORK_SHARE * min(speeds), f"network of {min(speeds):.2f} GB/s"
    return SOCKET_GB_PER_S, "less than a fifth of Gigabit Ethernet"

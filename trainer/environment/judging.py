"""From what all ranks have posted to the findings, without torch: limits, sentences and advice stand here alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.environment.expectation import expect_bandwidth
from trainer.environment.findings import PROBLEM, Finding

GIB = 2**30
SHM_GIB = 0.125
"""Of shared memory that is free, for each rank of a pod: a container without a volume there has 0.0625 in all."""
FREE_GIB = 1.0
SLOW_MB_PER_S = 5.0
CLOCK_S = 1.0
VOLUME_CLOCK_S = 5.0
FREE_SHARE = 0.9
"""Of a device's memory: with less somebody else is on it."""


@dataclass(frozen=True)
class Asked:
    """What the run would ask for: pods, ranks in each, and the expected GB/s of an all-reduce, 0.0 = not stated."""

    nodes: int
    per_node: int
    accelerator: str = ""
    results: str = "results"
    least_gb_per_s: float = 0.0
    limit_s: float = 120.0

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node


Facts = Mapping[int, Mapping[str, Any]]


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
        *_judge_shared_memory(asked, facts),
        *_judge_volume(asked, facts),
        *_judge_files(facts),
        *_judge_clocks(facts),
        *_judge_network(asked, facts),
    ]


def _judge_ranks(
    asked: Asked, facts: Facts, stages: Mapping[int, str], ends: Mapping[int, str]
) -> Iterator[Finding]:
    lost = [rank for rank in range(asked.ranks) if stages.get(rank) != "done"]
    for rank in lost:
        at = f"came no further than {stages[rank]!r}" if rank in stages else "has said nothing"
        end = ends.get(rank) or f"within {asked.limit_s:.0f} s"
        fix = "its log says more; one that is killed may lack memory, one that hangs waits for its device or its peers"
        yield Finding(PROBLEM, "ranks", f"{_name(rank, facts)} {at}, {end}", fix)
    for rank, found in sorted(facts.items()):
        if error := _error(found, "meeting"):
            fix = "addresses and ports between the pods: network policies, GLOO_SOCKET_IFNAME"
            yield Finding(PROBLEM, "ranks", f"{_name(rank, facts)} has not met the others: {error}", fix)
    if not lost and asked.ranks == len(facts):
        where = f"on {_list({found['node'] or found['host'] for found in facts.values()})}"
        yield Finding("ok", "ranks", f"{asked.ranks} in {asked.nodes} pod(s), {where}")


def _judge_versions(facts: Facts) -> Iterator[Finding]:
    found = {rank: each["versions"] for rank, each in facts.items() if not _error(each, "versions")}
    if not found:
        return
    names = [name for name in next(iter(found.values())) if any(each.get(name) for each in found.values())]
    drivers = {rank: str(each.get("device", {}).get("driver") or "") for rank, each in facts.items()}
    columns = {name: {rank: each.get(name, "") for rank, each in found.items()} for name in names}
    columns |= {"driver": drivers} if any(drivers.values()) else {}
    differ = {name: column for name, column in columns.items() if len({*column.values()}) > 1}
    for name, column in differ.items():
        seen = ", ".join(
            f"{value or 'none'} on ranks {_list(_who(column, value))}" for value in {*column.values()}
        )
        state, fix = (
            ("warning", "one driver for all nodes")
            if name == "driver"
            else (PROBLEM, "one image for all pods")
        )
        yield Finding(state, "versions", f"{name} differs: {seen}", fix)  # type: ignore[arg-type]
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
        fix = "the node, its driver and device plugin, CUDA_VISIBLE_DEVICES, an image for GPUs"
        yield Finding(PROBLEM, subject, f"pod {pod}: {sentence}", fix)
    uuids: dict[str, int] = {}
    for rank, found in sorted(facts.items()):
        device = found.get("device", {})
        if error := _error(found, "device"):
            wrong = True
            yield Finding(
                PROBLEM,
                subject,
                f"{_name(rank, facts)}: its device fails: {error}",
                "the node's driver, nvidia-smi, dmesg",
            )
        elif device.get("type") == "none" and found["pod"] not in refusals:
            wrong = True
            seen = f"{_name(rank, facts)}: {asked.per_node} processes in its pod, {device['visible']} device(s) visible"
            yield Finding(
                PROBLEM, subject, seen, "one device per process: ask for more devices or for fewer processes"
            )
        elif (uuid := device.get("uuid")) and uuids.setdefault(uuid, rank) != rank:
            wrong = True
            yield Finding(
                PROBLEM,
                subject,
                f"ranks {uuids[uuid]} and {rank} have the same device {uuid}",
                "CUDA_VISIBLE_DEVICES",
            )
        if device.get("gib") and device["free_gib"] < FREE_SHARE * device["gib"]:
            seen = f"{_name(rank, facts)}: {device['free_gib']:.1f} of {device['gib']:.1f} GiB free"
            yield Finding("warning", subject, seen, "somebody else is on it: nvidia-smi says who")
    names = {device["name"] for each in facts.values() if (device := each.get("device", {})).get("name")}
    if len(names) > 1:
        wrong = True
        yield Finding(
            "warning",
            subject,
            f"they differ: {_list(names)}",
            "steps take as long as on the slowest: run.scheduling.nodeSelector",
        )
    if not wrong and names:
        free = [each["device"]["free_gib"] for each in facts.values() if "free_gib" in each.get("device", {})]
        memory = f", {min(free):.1f} GiB free" if free else "; no accelerator is visible"
        yield Finding("ok", subject, f"{len(facts)} x {_list(names)}{memory}{_describe_joins(facts)}")


def _describe_joins(facts: Facts) -> str:
    joins = {join for each in facts.values() for join in each.get("device", {}).get("joined", {}).values()}
    return f", joined by {_list(joins)}" if joins else ""


def _judge_shared_memory(asked: Asked, facts: Facts) -> Iterator[Finding]:
    needed = SHM_GIB * asked.per_node
    fix = "run.sharedMemory.sizeLimit in the charts, --shm-size=1g for docker"
    free = []
    for found in _firsts(facts, "shared memory"):
        shm = found["shared memory"]
        if error := _error(found, "shared memory"):
            yield Finding(
                PROBLEM, "shared memory", f"pod {found['pod']}: /dev/shm cannot be written: {error}", fix
            )
        elif shm["free_gib"] < needed:
            seen = f"pod {found['pod']}: {shm['free_gib'] * 1024:.0f} of {shm['gib'] * 1024:.0f} MiB free in /dev/shm"
            yield Finding(
                PROBLEM,
                "shared memory",
                f"{seen}, {needed * 1024:.0f} are needed for {asked.per_node} rank(s)",
                fix,
            )
        else:
            free.append(shm["free_gib"])
    if free and len(free) == len([*_firsts(facts, "shared memory")]):
        yield Finding("ok", "shared memory", f"{min(free):.1f} GiB free in /dev/shm")


def _judge_volume(asked: Asked, facts: Facts) -> Iterator[Finding]:
    subject, good = "results volume", []
    for found in _firsts(facts, subject):
        volume, where = found[subject], f"pod {found['pod']}: {asked.results}"
        room = f", {volume['free_gib']:.2f} of {volume['gib']:.2f} GiB free" if "gib" in volume else ""
        if error := _error(found, subject):
            fix = "free space (stratlab remove, or a larger claim); its owner or fsGroup, where that is not allowed"
            yield Finding(PROBLEM, subject, f"{where} cannot be written: {error}{room}", fix)
        elif volume["free_gib"] < FREE_GIB:
            fix = "checkpoints, traces and weights need room: stratlab remove, or a larger claim"
            yield Finding(
                PROBLEM,
                subject,
                f"{where}: {volume['free_gib']:.2f} GiB free, {FREE_GIB:.0f} are needed",
                fix,
            )
        elif volume["mb_per_s"] < SLOW_MB_PER_S:
            seen = f"{where}: {volume['mb_per_s']:.1f} MB/s written"
            yield Finding(
                "warning",
                subject,
                seen,
                "checkpoints will take long: a faster StorageClass, or checkpoint_minutes",
            )
        else:
            good.append(volume)
    if good and len(good) == len([*_firsts(facts, subject)]):
        free, speed = min(each["free_gib"] for each in good), min(each["mb_per_s"] for each in good)
        yield Finding("ok", subject, f"{asked.results}: {free:.1f} GiB free, {speed:.0f} MB/s written")


def _judge_files(facts: Facts) -> Iterator[Finding]:
    found = {
        rank: each["files of the others"]
        for rank, each in sorted(facts.items())
        if "files of the others" in each
    }
    blind = {rank: each["unseen"] for rank, each in found.items() if each.get("unseen")}
    for rank, unseen in blind.items():
        fix = "one claim for all pods, of a StorageClass whose ReadWriteMany volumes are really shared"
        seen = f"{_name(rank, facts)} does not see what rank(s) {_list(unseen)} wrote on the results volume"
        yield Finding(PROBLEM, "shared files", seen, fix)
    if not blind and len(found) > 1 and not any(each.get("error") for each in found.values()):
        longest = max(each["after_s"] for each in found.values())
        yield Finding(
            "ok", "shared files", f"each rank sees those of the others, after {longest:.1f} s at most"
        )


def _judge_clocks(facts: Facts) -> Iterator[Finding]:
    fix = "the time service of the node (chrony, systemd-timesyncd)"
    seen, wrong = [], False
    for rank, found in sorted(facts.items()):
        clock = found.get("clock", {})
        if "offset_s" in clock and rank:
            seen.append(abs(clock["offset_s"]))
            if abs(clock["offset_s"]) - clock["within_s"] > CLOCK_S:
                wrong = True
                text = f"{_name(rank, facts)}: {_describe_offset(clock['offset_s'])} rank 0"
                yield Finding(PROBLEM, "clock", text, fix)
        volume = found.get("results volume", {})
        if "clock_s" in volume and abs(volume["clock_s"]) - volume["clock_within_s"] > VOLUME_CLOCK_S:
            wrong = True
            text = f"pod {found['pod']}: {_describe_offset(-volume['clock_s'])} the results volume's"
            yield Finding(PROBLEM, "clock", text, fix)
    if not wrong and facts:
        between = f"ranks within {max(seen) * 1e3:.0f} ms" if seen else "one rank"
        yield Finding("ok", "clock", f"{between}, and that of the results volume")


def _describe_offset(seconds: float) -> str:
    return f"its clock is {abs(seconds):.1f} s {'before' if seconds > 0 else 'behind'}"


def _judge_network(asked: Asked, facts: Facts) -> Iterator[Finding]:
    for rank, found in sorted(facts.items()):
        for name in ("clock", "files of the others", "all-reduce"):
            if error := _error(found, name):
                fix = "NCCL_DEBUG=INFO, addresses and ports between the pods, /dev/shm"
                yield Finding(PROBLEM, "network", f"{_name(rank, facts)}: {name} failed: {error}", fix)
    first = facts.get(0, {})
    sizes = first.get("all-reduce", {})
    if "all" not in sizes or "error" in sizes:
        return
    backend = first["meeting"]["backend"]
    chosen = first.get("transport", {})
    words = [*chosen.get("via", []), *(f"network {name}" for name in chosen.get("network", []))]
    how = f"{backend}{' over ' + _list(words) if words else ''}"
    if asked.ranks == 1:
        yield Finding("ok", "all-reduce", f"{how}: one rank, nothing to send")
        return
    for scope, table in sizes.items():
        least, reason = expect_bandwidth(asked, facts, scope)
        best = max(row["gb_per_s"] for row in table)
        text = ", ".join(f"{_size(row['mib'])} {row['gb_per_s']:.3g} GB/s" for row in table)
        where = f"{asked.ranks} ranks" if scope == "all" else f"the {asked.per_node} ranks of a pod"
        subject = "all-reduce" if scope == "all" else "within a pod"
        seen = f"{where} by {how}: {text}"
        if least and best < least:
            fix = "the link itself (nvidia-smi topo -m, ibstat, ethtool), NCCL_SOCKET_IFNAME, NCCL_IB_HCA"
            yield Finding(PROBLEM, subject, f"{seen}; expected at least {least:.3g} GB/s ({reason})", fix)
        else:
            yield Finding("ok", subject, seen + (f" (at least {least:.3g} expected)" if least else ""))


def _size(mib: float) -> str:
    return f"{mib:.0f} MiB" if mib >= 1 else f"{mib * 1024:.0f} KiB"


def _firsts(facts: Facts, name: str) -> Iterator[Mapping[str, Any]]:
    """Those of each pod that have looked at what belongs to the pod."""
    yield from (found for _, found in sorted(facts.items()) if name in found)


def _error(found: Mapping[str, Any], name: str) -> str:
    value = found.get(name)
    return str(value.get("error") or "") if isinstance(value, Mapping) else ""


def _name(rank: int, facts: Facts) -> str:
    found = facts.get(rank, {})
    where = found.get("node") or found.get("pod")
    return (
        f"rank {rank} ({found['pod']}{' on ' + where if where != found['pod'] else ''})"
        if where
        else f"rank {rank}"
    )


def _who(column: Mapping[int, str], value: str) -> list[int]:
    return [rank for rank, each in column.items() if each == value]


def _list(names: Sequence[Any] | set[Any] | Iterator[Any]) -> str:
    return ", ".join(sorted(map(str, names)))

"""From what all ranks have posted to the findings, without torch; here ranks, versions and devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainer.environment.facts import STOPPED, Asked, Facts, join_names, name_rank, read_error
from trainer.environment.findings import PROBLEM, Finding
from trainer.environment.judging_network import judge_network
from trainer.environment.judging_storage import judge_clocks, judge_files, judge_shared_memory, judge_volume

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

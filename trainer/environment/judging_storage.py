"""Shared memory, the results volume, files that ranks show each other, and clocks: what they must have at least."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.environment.facts import Asked, Facts, find_firsts, join_names, name_rank, read_error
from trainer.environment.findings import PROBLEM, Finding

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


def _size(gib: float) -> str:
    """With a unit in which little room is not 0.00."""
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * 1024:.2f} MiB"


def judge_volume(asked: Asked, facts: Facts) -> Iterator[Finding]:
    subject, good = "results volume", []
    for found in find_firsts(facts, subject):
        volume, where = found[subject], f"pod {found['pod']}: {asked.results}"
        room = f", {_size(volume['free_gib'])} of {_size(volume['gib'])} free" if "gib" in volume else ""
        if error := read_error(found, subject):
            fix = "free space (stratlab remove, or a larger claim); its owner or fsGroup, where that is not allowed"
            seen = f"{where} cannot be written: {error}{room} [SL-volume-unwritable]"
            yield Finding(PROBLEM, subject, seen, fix)
        elif volume["free_gib"] < FREE_GIB:
            fix = "checkpoints, traces and weights need room: stratlab remove, or a larger claim"
            yield Finding(
                PROBLEM,
                subject,
                f"{where}: {_size(volume['free_gib'])} free, {FREE_GIB:.0f} GiB are needed [SL-volume-small]",
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

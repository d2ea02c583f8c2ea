"""reports/memory.json: counted and expected memory, the source of the expectation, and the differences.

By arithmetic a strategy's peak is its share of the state, the blocks in use, and the work itself:

    peak = state / ranks + blocks in use (parameters, gradients) + buckets + one process's memory without its state

The last term is counted for `single` with the same work per rank, without sharding. A strategy that holds more than a
twentieth above this pays for further memory of the lab or a library.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.memory.configurations import BEFORE, GIB, Configuration
from stratlab_spec.run_directory import write_json

RECORD = Path(__file__).with_name("expected.json")
RECORD_PCT = 1.0
LAST_DIGIT = 0.0051
"""GiB: a small figure cannot be met more closely."""
TOLERANCE_PCT = 5.0
BUCKETS_GIB = 2 * 192 / 1024
"""reduce_bucket_mib twice: one fills while the other travels."""
STATE_CAUSES = ("parameters", "master copies", "gradients", "gradient buckets", "optimizer state")


@dataclass(frozen=True)
class Sizes:
    """Numbers of parameters."""

    block: int
    """Parameters of one of its equal blocks."""
    blocks: int
    root: int
    """Parameters outside the blocks: embeddings, the last norm, the head."""

    @property
    def gib(self) -> float:
        """All of them in fp32."""
        return 4 * (self.block * self.blocks + self.root) / GIB


SIZES = {
    "vit_huge": Sizes(block=19_677_440, blocks=32, root=2_367_720),
    "qwen2.5-3b": Sizes(block=77_078_016, blocks=36, root=311_166_976),
}


@dataclass(frozen=True)
class Shares:
    """How much of the fp32 parameters' size a strategy holds of each kind, whole and in shards."""

    whole: int
    """Copies of the parameters' size on every rank."""
    sharded: int
    gathered_blocks: int = 0
    """In addition to the root, in 16 bits: the computing block and those being gathered."""
    buckets: bool = False


SHARES = {
    "ddp": Shares(whole=4, sharded=0),
    "zero1": Shares(whole=2, sharded=3, buckets=True),
    "zero2": Shares(whole=1, sharded=4, buckets=True),
    "zero3": Shares(whole=0, sharded=4, gathered_blocks=2, buckets=True),
    **dict.fromkeys(("fsdp", "hsdp", "nd"), Shares(whole=0, sharded=4, gathered_blocks=2)),
}
"""Parameters, gradients and two moments; with ZeRO 1 and 2 the parameters are whole in fp32 (16 bits would lose the
exact equality of all ranks' weights with the master copies) and an fp32 copy of each shard is the optimizer's own."""


class Report:
    """The file, written anew after every count.

    Args:
        code: of describe_code; counts of other code are dropped.
        record: the figures of `--record`: {"gib": {name: {cause: GiB}}, ...}.
    """

    def __init__(self, path: Path, code: dict[str, str], record: dict[str, Any]) -> None:
        self._path, self._code, self._record = path, code, record
        before = json.loads(path.read_text()) if path.exists() else {}
        same = before.get("code") == code
        self._rows: dict[str, dict[str, Any]] = before["configurations"] if same else {}

    def has(self, one: Configuration) -> bool:
        """Return whether it is already counted, for the same settings."""
        row = self._rows.get(one.name)
        return row is not None and "failed" not in row and row["settings"] == one.settings

    def add(self, one: Configuration, found: dict[str, Any]) -> str:
        """Keep a count; return a line about it."""
        row = {"settings": one.settings, "ranks": one.ranks, "rank": one.rank, "before_gib": one.before_gib}
        self._rows[one.name] = row | found
        self._write()
        if "failed" in found:
            return f"{one.name}: failed: {found['failed'].splitlines()[-1]}"
        before = f", {one.before_gib:.2f} before" if one.before_gib else ""
        return f"{one.name}: peak {found['gib']['peak']:.2f} GiB{before}; {found['cpu_s']} s of CPU"

    def judge(self, chosen: Sequence[Configuration]) -> int:
        """Compare, and print figures out of tolerance; 0 without any."""
        for one in chosen:
            self._rows[one.name] |= self._compare(one)
        self._write()  # also if nothing had to be counted: the commit is today's
        bad = [line for one in chosen for line in self._complaints(one)]
        print("\n".join(bad) or f"{len(chosen)} configurations as expected")
        return 1 if bad else 0

    def recorded(self) -> dict[str, Any]:
        """Return the content for `--record`."""
        gib = {name: row["gib"] for name, row in sorted(self._rows.items()) if "gib" in row}
        return {"commit": _read_commit(), "code": self._code, "gib": gib}

    def _compare(self, one: Configuration) -> dict[str, Any]:
        row = self._rows[one.name]
        if "failed" in row:
            return {}
        expected = self._record["gib"].get(one.name, {})
        found = {"figures": compare(expected, row["gib"])}
        if one.at_most_gib:
            found["at_most_gib"] = one.at_most_gib
        if one.alone and "gib" in self._rows.get(one.alone, {}):
            reckoned = reckon(one, self._rows[one.alone]["gib"])
            found["arithmetic"] = _differ(reckoned, row["gib"]["peak"], TOLERANCE_PCT)
        return found

    def _complaints(self, one: Configuration) -> Iterator[str]:
        row = self._rows[one.name]
        if "failed" in row:
            yield f"{one.name}: failed"
            return
        if not row["figures"]:
            yield f"{one.name}: nothing is recorded in {RECORD.name}; if its figures are right: --record"
        against = {f"{name}, recorded": figure for name, figure in row["figures"].items()}
        against |= {"peak, by arithmetic": row["arithmetic"]} if "arithmetic" in row else {}
        for name, figure in against.items():
            if not figure["inside"]:
                yield (
                    f"{one.name}: {name}: {figure['counted']:.3f} GiB counted, {figure['expected']:.3f} expected "
                    f"({figure['difference_pct']} %)"
                )
        if one.at_most_gib and row["gib"]["peak"] > one.at_most_gib:
            yield f"{one.name}: peak {row['gib']['peak']:.2f} GiB, at most {one.at_most_gib:g} promised"
        if one.alone and "arithmetic" not in row:
            yield f"{one.name}: {one.alone!r} is not counted, of which the arithmetic takes its activations"

    def _write(self) -> None:
        content = {
            "schema_version": 2,
            "what": "peak memory of one rank in its second step, counted on fake tensors, without a device",
            "before": BEFORE,
            "recorded_at": self._record.get("commit", ""),
            "tolerance_pct": {"recorded": RECORD_PCT, "arithmetic": TOLERANCE_PCT},
            "commit": _read_commit(),
            "date": date.today().isoformat(),
            "code": self._code,
            "configurations": self._rows,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._path, content)


def compare(expected: dict[str, float], gib: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Compare each recorded figure with the counted one."""
    return {name: _differ(figure, gib[name], RECORD_PCT) for name, figure in expected.items()}


def reckon(one: Configuration, alone: dict[str, float]) -> float:
    """Return GiB at the peak; `alone` are the causes of its configuration of one process, with their sum as `peak`."""
    named = dict(setting.split("=", 1) for setting in one.settings.split())
    sizes, shares = SIZES[named["model"]], SHARES[named["strategy"]]
    ranks = int(named.get("dp_shard", one.ranks))
    state = sizes.gib * (shares.whole + shares.sharded / ranks)
    in_use = 0.0
    if shares.gathered_blocks:
        gradients = 4 * sizes.block
        in_use = (2 * (sizes.root + shares.gathered_blocks * sizes.block) + gradients) / GIB
    work = alone["peak"] - sum(alone[cause] for cause in STATE_CAUSES)
    return state + in_use + (BUCKETS_GIB if shares.buckets else 0) + work


def _differ(expected: float, counted: float, tolerance_pct: float) -> dict[str, Any]:
    difference = counted - expected
    return {
        "expected": round(expected, 4),
        "counted": counted,
        "difference_pct": round(100 * difference / expected, 2) if expected else None,
        "inside": abs(difference) <= max(expected * tolerance_pct / 100, LAST_DIGIT),
    }


def _read_commit() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()

"""Whether two run directories say the same, field by field, but for what belongs to one run: name, times, peaks."""

import json
import re
from pathlib import Path
from typing import Any

OF_ONE_RUN = ("run", "results", "run_uid", "started", "created", "command")
LOAD = r"cpu_pressure_pct|other_cpu_pct"
"""What other programs did on the machine."""
MEASURED = re.compile(
    r".*_(s|per_s|ms_p50|ms_p95|ms_mean)|measured_steps|warmup|straggler.*|comm_exposed_pct|peak_(memory|host|reserved).*|"
    + LOAD
)
NAMED_BY_PODS = re.compile(r"^(pods|faults)/.*")


def list_differences(ours: Path, theirs: Path) -> list[str]:
    found = [f"{name}: only one has it" for name in sorted(_list_files(ours) ^ _list_files(theirs))]
    for name in ("config.json", "summary.json", "evaluation.json", "deepspeed.json"):
        if (ours / name).exists() and (theirs / name).exists():
            found += _compare(name, *(json.loads((each / name).read_text()) for each in (ours, theirs)))
    one, other = (_read_steps(each) for each in (ours, theirs))
    found += [f"metrics.jsonl: {a} and {b}" for a, b in zip(one, other, strict=False) if a != b]
    return found + [f"metrics.jsonl: {len(one)} and {len(other)} lines"] * (len(one) != len(other))


def _compare(place: str, one: Any, other: Any) -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        names = [
            name for name in sorted({*one, *other}) if name not in OF_ONE_RUN and not MEASURED.fullmatch(name)
        ]
        return [
            line for name in names for line in _compare(f"{place} {name}", one.get(name), other.get(name))
        ]
    return [] if one == other else [f"{place}: {one!r} and {other!r}"]


def _read_steps(folder: Path) -> list[dict[str, Any]]:
    """Losses, norms and learning rates of the steps, and what the evaluations found."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [line for line in lines if line["kind"] in ("train", "eval")]
    return [
        {
            name: value
            for name, value in line.items()
            if name != "t" and not name.endswith(("_ms", "_s", "_gib"))
        }
        for line in kept
    ]


def _list_files(folder: Path) -> set[str]:
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {NAMED_BY_PODS.sub(r"\1", name) for name in names}

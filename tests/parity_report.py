"""What a parity suite has found, as a file: the tests may run in another process than the one that prints it."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stratlab_spec.run_directory import write_json
from trainer.distributed.world import processor_name
from trainer.run import read_git_sha, read_versions

ROOT = Path(__file__).resolve().parents[1]
RAW = ROOT / "reports" / "raw"
PARITY, PARITY_LLM = RAW / "parity-full.json", RAW / "parity-llm-full.json"
"""Of the full tables; the nightly suites (tests/suites) keep them in reports/parity.json and parity-llm.json."""
PARITY_SMALL, PARITY_LLM_SMALL = RAW / "parity-small.json", RAW / "parity-llm-small.json"
"""Of the small matrices, which run on every change."""


def write_report(path: Path, steps: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves commit, versions, hardware, steps, and what was found; gives them back."""
    facts = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": read_git_sha(),
        "versions": read_versions(), "backend": "gloo", "hardware": processor_name(), "steps": steps,
        "repeats": 1,
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    content = facts | dict(found)
    write_json(path, content)
    return content


def parity_table(found: Mapping[str, Any]) -> list[str]:
    """The lines of a suite: each case with its differences, reshardings, planted faults."""
    lines = [
        f"{'strategy':8} {'mesh':20} {'model':16} {'n':>2} {'loss':>8} {'norm':>8} {'gradient':>8}  variant"
    ]
    for row in found["rows"]:
        failure = "" if row["passed"] else f"  FAILED {row['parameter']} {'; '.join(row['complaints'][:3])}"
        name = f"{row['strategy']:8} {row.get('mesh', ''):20} {row['model']:16} {row['world_size']:2}"
        moved = row["moved_pct"]
        elsewhere = "" if moved is None else f", {moved:.1f} % would go elsewhere"
        numbers = (row[each] for each in ("loss", "grad_norm", "gradient"))
        differences = " ".join("       -" if n is None else f"{n:8.1e}" for n in numbers)
        lines.append(f"{name} {differences}  {row['variant']}{elsewhere}{failure}")
    for pair in found["reshardings"]:
        verdict = "" if pair["passed"] else "  FAILED"
        lines.append(
            f"saved on {pair['saved']}, continued on {pair['continued']} ({pair['model']}): "
            f"{pair['loss']:.1e} {pair['grad_norm']:.1e}{verdict}"
        )
    faults = found["mutations"]
    return lines + [f"{'caught' if f['caught'] else 'MISSED'}: {f['name']} ({f['case']})" for f in faults]

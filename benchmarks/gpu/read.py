"""Print the results of a GPU as tables: stages, gates, and the figures of each stage.

python -m benchmarks.gpu.read results            a folder with results.jsonl, or the file
python -m benchmarks.gpu.read part1 part2        several parts
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.gates import Verdict, judge_lines
from benchmarks.gpu.session import END, FILE, Line
from benchmarks.gpu.stages import STAGES
from stratlab_spec.run_directory import read_lines

OWN = {
    "step ms": "step_time_ms_p50",
    "samples/s": "samples_per_s",
    "tokens/s": "tokens_per_s",
    "MFU %": "mfu_pct",
    "peak GiB": "peak_memory_gib",
    "counted GiB": "forecast_memory_gib",
    "off %": "forecast_memory_error_pct",
    "reserved GiB": "peak_reserved_gib",
    "outside GiB": "outside_gib",
    "falls": "falls",
}
RATIO = {"ours/theirs": "project_over_peer"}
ROOM = {"used %": "device_used_pct", "retries": "num_alloc_retries"}
COLUMNS: dict[str, dict[str, str]] = {
    "project": OWN,
    "strategies": OWN,
    "memory": OWN,
    "ceilings": {"ms": "ms", "TFLOP/s": "tflops", "GB/s on the device": "device_gb_per_s"},
    "peers": {"ms": "ms", "our step ms": "step_time_ms_p50", "samples/s": "samples_per_s", **RATIO},
    "gloo": {"loss error": "loss_error", "norm error": "norm_error", "wall s": "wall_s"},
    "capacity": {"batch": "batch", "samples/s": "samples_per_s", **ROOM},
}
"""Which facts of a stage make a table: title -> name in the line."""
SHOWN_ELSEWHERE = ("call", "stage", "item", "status", "seconds", "errors")
HIDDEN = (*SHOWN_ELSEWHERE, "settings", "log", "where", "losses", "step_ms", "grad_norms")
WIDEST = 60


def build_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return lines with columns as wide as their cells."""
    texts = [[*map(str, header)], *([_show(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    cells = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in texts)
    return ["  ".join(row).rstrip() for row in cells]


def _show(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_show(entry)}" for key, entry in value.items())[:WIDEST]
    return str(value)[: 2 * WIDEST]


def describe(lines: list[Line]) -> list[str]:
    """Return the whole page: the place of the run, the end of each stage, failed gates, and the figures."""
    begins = [line for line in lines if line.get("item") == "begin"] or [{"device": "cuda", "tiny": False}]
    device, small = begins[-1]["device"], ", small sizes: the figures mean nothing"
    found = [f"device: {device}{small if begins[-1]['tiny'] else ''}", *_describe_place(lines)]
    found += ["", *describe_ends(lines)]
    found += ["", *describe_gates(judge_lines(lines, device))]
    for stage in STAGES:
        own = [line for line in lines if line.get("stage") == stage.name and line.get("item") != END]
        if own:
            found += ["", f"{stage.name}: {stage.purpose}", *_describe_stage(stage.name, own)]
    return found


def describe_ends(lines: list[Line]) -> list[str]:
    """Return one row per stage; one that has no end line was cut off with the whole program."""
    columns = ("stage", "status", "done", "failed", "skipped", "seconds")
    ends = [line for line in lines if line.get("item") == END and line.get("stage") != "all"]
    rows = [(*(end[name] for name in columns), "; ".join(end["reasons"])) for end in ends]
    cut_off = {line["stage"] for line in lines} - {"all"} - {end["stage"] for end in ends}
    rows += [(name, "cut off", None, None, None, None, "no end line") for name in sorted(cut_off)]
    return build_table((*columns, "why"), rows)


def describe_gates(verdicts: list[Verdict]) -> list[str]:
    """Return one row per gate and stage, with the items that failed it."""
    rows = []
    for stage, gate in dict.fromkeys((v.stage, v.gate) for v in verdicts):
        own = [v for v in verdicts if (v.stage, v.gate) == (stage, gate)]
        failed = [f"{v.item} ({_show(v.value)})" for v in own if not v.passed]
        rows.append((stage, gate, f"{len(own) - len(failed)} of {len(own)}", "; ".join(failed) or "passed"))
    return build_table(("stage", "gate", "hold", "failed at"), rows)


def _describe_place(lines: list[Line]) -> list[str]:
    items = {line["item"]: line for line in lines if line.get("stage") == "environment"}
    versions = items.get("versions", {}).get("versions", {})
    found = [f"Python {items['versions']['python']}"] if "python" in items.get("versions", {}) else []
    found += [f"{n} {versions[n]}" for n in ("torch", "transformers", "deepspeed") if n in versions]
    card, switches = items.get("machine", {}).get("nvidia_smi", {}), items.get("torch settings", {})
    found += [f"{card['name']}, driver {card.get('driver_version')}"] if "name" in card else []
    found += [f"cuDNN {switches['cudnn']}"] if "cudnn" in switches else []
    return [", ".join(found)] if found else []


def _describe_stage(stage: str, lines: list[Line]) -> list[str]:
    if stage == "numerics":
        return build_table(("item", "status", "largest relative errors"), map(_numerics_row, lines))
    columns = COLUMNS.get(stage)
    if columns is None:
        return build_table(("item", "status", "facts"), map(_facts_row, lines))
    rows = [(e["item"], e["status"], *(e.get(name) for name in columns.values()), _why(e)) for e in lines]
    return build_table(("item", "status", *columns, ""), rows)


def _numerics_row(line: Line) -> tuple[Any, ...]:
    errors = line.get("errors", {})
    largest = {name: max(map(float, e.values())) for name, e in errors.items() if isinstance(e, dict)}
    missing = [name for name, entry in errors.items() if isinstance(entry, str)]
    text = ", ".join(f"{name} {error:.1e}" for name, error in largest.items())
    text += f"; not here: {', '.join(missing)}" if missing else _why(line)
    return line["item"], line["status"], _Long(text)


class _Long(str):
    """Text that is not cut."""

    def __str__(self) -> str:
        return self


def _facts_row(line: Line) -> tuple[Any, ...]:
    facts = {key: value for key, value in line.items() if key not in HIDDEN}
    ways = facts.pop("ways", None)
    if isinstance(ways, dict):
        facts = {
            name: way["ms"] if isinstance(way, dict) and "ms" in way else way for name, way in ways.items()
        }
    return line["item"], line["status"], ", ".join(f"{name} {_show(value)}" for name, value in facts.items())


def _why(line: Line) -> str:
    return str(line.get("error") or line.get("reason") or "")


def main(arguments: list[str]) -> int:
    """Print the tables of the folders or files; return 1 if a stage or gate failed, 3 without results."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    code = 0
    for name in arguments:
        path = Path(name) / FILE if Path(name).is_dir() else Path(name)
        lines = read_lines(path)
        if not lines:
            problem = f"no results; expected a folder with {FILE} [SL-gpu-results-missing]"
            print(f"{name}: {problem}", file=sys.stderr)
            return 3
        print("\n".join(describe(lines)))
        code |= any(line.get("item") == END and line.get("status") == "failed" for line in lines)
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

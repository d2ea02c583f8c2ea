"""The command: `python -m benchmarks.gpu`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu.models import find_run_problems
from benchmarks.gpu.stages import PARTS, STAGES, Stage, UnknownStage, choose_stages

WRONG_INPUT = 2
CPU_SCALE = 8.0
"""Budgets are not measured there, and the machine may be busy."""
EXAMPLE = """examples:
  make gpu PART=1 OUT=results                    the first nine minutes on a GPU
  make gpu STAGES=numerics,ab OUT=results        two stages
  make gpu DEVICE=cpu TINY=1                     every stage's code on a CPU; the figures mean nothing
  python -m benchmarks.gpu --part 1 --out results
  python -m benchmarks.gpu --stages project --runs resnet:single,vit_base:zero2+compile --out results
  python -m benchmarks.gpu.read results          what came out, as tables

stages:
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the arguments, with the table of stages."""
    rows = [f"  {s.name:12} part {s.part}  {s.budget_s:4} s  {s.purpose}" for s in STAGES]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="Proves on a GPU, stage by stage, that the project works there, and how fast.",
        epilog=EXAMPLE + "\n".join(rows),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", type=int, help=f"one of {', '.join(map(str, PARTS))}; default: all parts")
    parser.add_argument("--stages", default="", help="names from the table, separated by commas")
    comes_back, kept = (
        "folder of the results, at most 8 files",
        "runs, caches and logs; default: a folder of the system's own",
    )
    parser.add_argument("--out", type=Path, default=Path("results/gpu"), help=comes_back)
    parser.add_argument("--work", type=Path, help=kept)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes everywhere")
    instead = (
        "in project, strategies and memory these runs instead of theirs: model:strategy+extra, with commas"
    )
    parser.add_argument("--runs", default="", help=instead)
    factor = f"factor on every budget; default: 1, on a CPU {CPU_SCALE:.0f}"
    parser.add_argument("--scale", type=float, help=factor)
    return parser


def find_missing(device: str) -> str:
    """Return why the stages cannot run here; empty if they can."""
    try:
        import torch
    except ImportError as failure:
        return f"torch cannot be imported by {sys.executable}: {failure} [SL-gpu-torch-missing]"
    if device == "cuda" and not torch.cuda.is_available():
        return (
            "DEVICE=cuda: torch does not find a CUDA device here; "
            "DEVICE=cpu TINY=1 runs every stage's code without one [SL-gpu-no-cuda]"
        )
    return ""


def main(arguments: list[str]) -> int:
    """Return 0 if every stage executed something and none failed; 2 if nothing could be started."""
    options = build_parser().parse_args(arguments)
    try:
        stages: tuple[Stage, ...] = choose_stages(options.stages, options.part)
    except UnknownStage as problem:
        print(problem, file=sys.stderr)
        return WRONG_INPUT
    if problems := find_run_problems(options.runs):
        print("\n".join(problems), file=sys.stderr)
        return WRONG_INPUT
    if problem_text := find_missing(options.device):
        print(problem_text, file=sys.stderr)
        return WRONG_INPUT
    from benchmarks.gpu.run import run_stages

    work = options.work or Path(tempfile.gettempdir()) / "stratlab-gpu"
    return run_stages(
        stages,
        device=options.device,
        tiny=options.tiny,
        out=options.out.resolve(),
        work=work.resolve(),
        runs=options.runs,
        scale=options.scale or (CPU_SCALE if options.device == "cpu" else 1.0),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

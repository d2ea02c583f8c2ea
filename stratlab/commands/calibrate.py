"""The verb `stratlab calibrate`: its options and its output."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from stratlab import UserError


def calibrate(
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FILE", help="Gets the machine, for `stratlab predict --machine FILE`."
        ),
    ] = Path("machine.json"),
    ranks: Annotated[
        int, typer.Option(min=1, max=64, help="Processes on this machine: one per GPU, or of a CPU.")
    ] = 1,
    gpu: Annotated[
        str, typer.Option(metavar="NAME", help="Kind of the GPUs: h200, h100, ...; left out on a CPU.")
    ] = "",
    from_runs: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Measure nothing: refine the machine in --out by the finished runs below this folder.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure this machine for predictions of step times: rates, host, links; at most ten minutes.

    On several nodes start the same line on each, with torchrun's variables (PET_NNODES, PET_NODE_RANK,
    PET_RDZV_BACKEND, PET_RDZV_ENDPOINT, PET_RDZV_ID), and --out in a folder that all see.

    Example: stratlab calibrate --out machine.json --ranks 8 --gpu h100

    Example: stratlab calibrate --out machine.json --from-runs results/runs/mine
    """
    from stratlab.predict import calibrating
    from stratlab.predict.timing import find_card, find_machine
    from stratlab_spec.step_time.measured_machine import CPU

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UserError(f"--out {out}: expected a file in a folder that is there [SL-calibrate-out]")
    if from_runs:
        if not from_runs.is_dir():
            raise UserError(f"--from-runs {from_runs}: no such folder [SL-calibrate-runs-folder]")
        folders = sorted(path.parent for path in from_runs.rglob("summary.json"))
        machine = calibrating.refine(find_machine(out, gpu), folders, tell)
    else:
        if gpu and gpu != CPU:
            gpu = find_card(gpu).name
        with calibrating.open_folder(out, int(os.environ.get("PET_NNODES", "1"))) as folder:
            measured = calibrating.calibrate(ranks, gpu, folder, tell)
        if measured is None:
            return
        machine = measured
    try:
        machine.write(out)
    except OSError as failure:
        raise UserError(f"--out {out}: {failure.strerror} [SL-calibrate-not-written]") from None
    for name, one in machine.scalars.items():
        print(f"{name:18} {one.value:10.4g}  ± {one.uncertainty_pct:.0f} %")
    if machine.card_name == CPU:
        print("gloo on a CPU: says nothing of GPUs")
    print(f"{out}: stratlab predict MODEL --machine {out}")

"""The verb `stratlab expect`: its options and its output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stratlab import UserError
from stratlab.commands import HelmSettings, open_console, print_json
from stratlab.commands.predict import GPUS, MOST_GPUS, NOTHING_KNOWN


def expect(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL | RUN_DIR",
            help="A preset, its name on the hub, a config.json or its folder; or a finished run, to place it.",
            show_default=False,
        ),
    ],
    gpus: Annotated[
        int | None, typer.Option(min=1, max=MOST_GPUS, help="How many; 8 if left out.", show_default=False)
    ] = None,
    gpu: Annotated[str, typer.Option(metavar="NAME", help="Their kind: h200, h100, a100-80gb, ...")] = "",
    settings: HelmSettings = None,
    measured: Annotated[
        float | None,
        typer.Option(
            "--tokens-per-s",
            "--images-per-s",
            min=1e-9,
            max=1e15,
            help="Your speed, of all GPUs together, to place it.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show the speed that others have published for runs like yours, and place your own in it.

    Tokens or images per second and GPU, and MFU, of the nearest published rows, with their sources. Exit code 3: no
    row is near.

    Example: stratlab expect Qwen/Qwen2.5-3B-Instruct --gpus 8 --gpu h100 --set strategy=fsdp --tokens-per-s 90000

    Example: stratlab expect results/first/fsdp
    """
    from stratlab.predict.expecting import ask_of_options, ask_of_run
    from stratlab.predict.expecting import expect as expect_speed
    from stratlab.run_directory.files import is_run

    folder = Path(model)
    if folder.is_dir() and is_run(folder):
        if given := [name for name, value in _name_options(gpus, gpu, settings, measured) if value]:
            raise UserError(
                f"{', '.join(given)}: {folder} is a run and has them; leave them out [SL-expect-options]"
            )
        asked = ask_of_run(folder)
    elif not gpu:
        raise UserError("--gpu: missing; expected the kind of GPU, as --gpu h100 [SL-expect-gpu]")
    else:
        asked = ask_of_options(model, gpus or GPUS, gpu, settings or (), measured)
    found = expect_speed(asked)
    if as_json:
        print_json(found.as_dict())
    elif found.rows:
        open_console().print(found.build_screen())
    else:
        print(f"{asked.name} on {asked.sought.gpus} x {asked.sought.card}: no published row is near")
    if not found.rows:
        raise typer.Exit(NOTHING_KNOWN)


def _name_options(*values: object) -> list[tuple[str, object]]:
    return [*zip(("--gpus", "--gpu", "--set", "--tokens-per-s"), values, strict=True)]

"""The verb `stratlab recommend`: its options and its output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stratlab import UserError
from stratlab.commands import open_console, print_json
from stratlab.commands.predict import GPUS, NOTHING_FITS, NOTHING_KNOWN

MOST_SEARCHED = 16_384
"""GPUs: more take minutes."""


def recommend(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A preset, its name on the hub, a config.json or its folder.",
            show_default=False,
        ),
    ],
    gpu: Annotated[
        str, typer.Option(metavar="NAME", help="Its kind: h200, h100, a100-80gb, ...", show_default=False)
    ],
    gpus: Annotated[
        int, typer.Option(min=1, max=MOST_SEARCHED, help="How many; with --goal cheapest at most.")
    ] = GPUS,
    goal: Annotated[
        str, typer.Option(help="fastest, leanest (least memory per GPU), or cheapest (fewest GPU hours).")
    ] = "fastest",
    data: Annotated[
        str, typer.Option(metavar="PATH|NAME", help="As for `stratlab run`; a usual data set if left out.")
    ] = "",
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Samples of an optimizer step, all GPUs; 64 or more if left out."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, max=10**6, help="Passes over the data.")] = None,
    epoch_size: Annotated[
        int | None,
        typer.Option(min=1, max=10**18, help="Tokens, or images, of one pass: gives hours and price."),
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None, typer.Option(min=0.0, max=1e9, help="Price of one GPU for an hour.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting that the search keeps; may be repeated."),
    ] = None,
    allow: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Also search: lora (trains adapters only), offload, or both."),
    ] = "",
    gpus_per_node: Annotated[int | None, typer.Option(min=1, help="GPUs of a node; 8 if left out.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write values for helm install.", show_default=False)
    ] = None,
    sweep: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a sweep of two or three short runs that settle the order."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: an object.")] = False,
) -> None:
    """Recommend a strategy and its settings for a goal, with values for helm and the line that starts the run.

    Compared are strategies and layouts, micro-batches at the same global batch, recomputation and compilation. Only
    runs below 85 % of the device are recommended. Exit code 10: none fits; 3: no time of a fitting run is known.

    Example: stratlab recommend Qwen/Qwen2.5-3B --gpu h100 --gpus 8 --out values.yaml

    Example: stratlab recommend vit_huge --gpu a100-80gb --goal cheapest --epochs 90 --epoch-size 1281167
    """
    from stratlab.commands.run import find_charts, list_charts
    from stratlab.predict.remedies import read_allowed
    from stratlab.predict.timing import find_card
    from stratlab.recommend.choice import Aim, choose, explain_choice, find_aim
    from stratlab.recommend.recommendation_screen import (
        Training,
        build_answer_screen,
        describe,
        list_heading,
        say_none,
    )
    from stratlab.recommend.search_space import search
    from stratlab.recommend.start_files import StartFiles
    from stratlab.recommend.wanted import list_questions, read_wanted

    _check_files(out, sweep)
    aim, card = find_aim(goal), find_card(gpu)
    allowed = read_allowed(allow)
    charts = find_charts()
    wanted = read_wanted(model, gpus, data, batch, epochs or 0, settings or (), list_charts(charts))
    questions = list_questions(wanted, gpus, gpus_per_node or 0, fewer=aim is Aim.cheapest)
    searched = search(questions, card, card.memory_gib, allowed)
    found = choose(searched.options, aim)
    training = Training(epochs or 0, epoch_size or 0, price_per_gpu_hour or 0.0)
    if found is None:
        fits = any(one.fits for one in searched.options)
        if as_json:
            print_json({"goal": goal, "recommended": None, "left_out": searched.left_out})
        else:
            print(say_none(searched))
        raise typer.Exit(NOTHING_KNOWN if fits or not searched.options else NOTHING_FITS)
    why = explain_choice(found.taken, searched.options, aim, wanted.typed)
    start = StartFiles(found, wanted, why, charts, list_heading(found, training, card.name))
    if out:
        _write(out, start.write_values())
    if sweep:
        _write(sweep, start.write_sweep(sweep))
    if as_json:
        print_json(describe(found, start, training, searched))
        return
    open_console().print(build_answer_screen(found, start, training, searched))
    for line in start.list_commands(out, sweep):
        print(line)


def _write(file: Path, text: str) -> None:
    from stratlab_spec.run_directory import write_whole

    try:
        write_whole(file, text)
    except OSError as failure:
        raise UserError(f"{file}: {failure.strerror} [SL-recommend-not-written]") from None


def _check_files(*files: Path | None) -> None:
    given = [file.absolute() for file in files if file]
    for file in given:
        if file.is_dir() or not file.parent.is_dir():
            raise UserError(f"{file}: expected a file in a folder that exists [SL-recommend-file]")
    if len(given) > len({*given}):
        raise UserError(f"--out and --sweep: both are {given[0]}; expected two files [SL-recommend-one-file]")

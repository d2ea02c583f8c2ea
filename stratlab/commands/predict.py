"""The verb `stratlab predict`: its options and its output."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from stratlab import UserError
from stratlab.commands import open_console
from stratlab_spec.memory import DEVICE_GIB

NOTHING_FITS = 10
NOTHING_KNOWN = 3
GPUS = 8
MOST_GPUS = 1 << 16


def predict(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL | CHART...",
            help="A preset, its name on the hub, a config.json or its folder; or chart folders or packages.",
            show_default=False,
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="As for helm; of a model a setting of run.config: seq_len=4096.",
        ),
    ] = None,
    values: Annotated[
        list[Path] | None,
        typer.Option("--values", "-f", metavar="FILE", help="As for helm; may be repeated."),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_GPUS, help="Of a model: how many; 8 if left out.", show_default=False),
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of a model: of them on one node, 8 if left out; hsdp and zeropp depend on it.",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[
        str,
        typer.Option(metavar="NAME", help="Its kind, for the time of a step: h200, h100, a100-80gb, ..."),
    ] = "",
    machine: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead of --gpu: a machine as `stratlab calibrate` measured it, with narrower bands.",
            show_default=False,
        ),
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1e9,
            help="With --gpu or --machine: the price of a million tokens or images.",
            show_default=False,
        ),
    ] = None,
    device_gib: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=100_000,
            help=f"Memory of one GPU; {DEVICE_GIB} or that of --gpu if left out. An H200 has 139.8.",
            show_default=False,
        ),
    ] = None,
    operations: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Further operations files, which go first.", show_default=False),
    ] = None,
    count: Annotated[
        bool | None,
        typer.Option(
            "--count/--no-count",
            help="Let the trainer count what is not known, where it is installed: half a minute and more for each.",
            show_default=False,
        ),
    ] = None,
    allow: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="What advice may propose besides: lora (trains adapters alone), offload (takes time), or both.",
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: a list of objects.")] = False,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with bars by cause.", show_default=False)
    ] = None,
) -> None:
    """Predict whether runs will fit their GPUs, and how they use the memory, before anything is started.

    No GPU, no torch and no network: steps of the trainer's own engines were recorded beforehand. Exit code 10: no run
    fits below 85 % of the device; 3: no run is known.

    Example: stratlab predict meta-llama/Llama-3.1-8B --gpus 8 --set seq_len=4096

    Example: stratlab predict Qwen/Qwen2.5-3B-Instruct --gpus 8 --gpu h100 --price-per-gpu-hour 2.5

    Example: stratlab predict charts/ddp charts/fsdp --set run.processesPerNode=8 --values my.yaml
    """
    from stratlab.predict import Prediction
    from stratlab.predict.advising import find_fewest
    from stratlab.predict.answering import Unknown, answer, look_up
    from stratlab.predict.asking import ask_of_charts, ask_of_model
    from stratlab.predict.counting import find_cache
    from stratlab.predict.remedies import check_nodes, read_allowed
    from stratlab.predict.timing import find_card, find_machine, predict_speeds
    from stratlab_spec.memory.prediction import Verdict
    from stratlab_spec.memory.profiles import BadOperationsFile, read_operations

    def refuse(wrong: BadOperationsFile) -> None:
        raise UserError(str(wrong))

    charts = [Path(one) for one in what if _is_chart(one)]
    if charts and len(charts) < len(what):
        others = ", ".join(one for one in what if Path(one) not in charts)
        raise UserError(f"{others}: no chart; expected charts alone, or one model [SL-predict-source]")
    if not charts and len(what) > 1:
        raise UserError(f"{', '.join(what)}: expected one model, or charts alone [SL-predict-models]")
    if values and not charts:
        raise UserError("--values: only with charts; of a model --set name=value [SL-values-of-model]")
    if charts and gpus:
        raise UserError(
            "--gpus: only with a model; with charts --set run.nodes=N --set run.processesPerNode=N "
            "[SL-gpus-of-charts]"
        )
    if charts and gpus_per_node:
        raise UserError(
            "--gpus-per-node: only with a model; with charts --set run.processesPerNode=N [SL-gpus-per-node-of-charts]"
        )
    if operations and not operations.is_dir():
        raise UserError(f"--operations {operations}: no such folder [SL-operations-folder]")
    if page and not page.absolute().parent.is_dir():
        raise UserError(f"--page {page}: its folder is missing [SL-page-no-folder]")
    if page and page.is_dir():
        raise UserError(f"--page {page}: is a folder; expected a file [SL-page-is-folder]")
    measured = find_machine(machine, gpu) if machine else None
    card = measured.card if measured else find_card(gpu) if gpu else None
    if price_per_gpu_hour and card is None:
        raise UserError("--price-per-gpu-hour: only with --gpu NAME or --machine FILE [SL-price-without-gpu]")
    if measured and not charts and not gpus_per_node and (gpus or GPUS) > measured.ranks_of_node:
        gpus_per_node = measured.ranks_of_node
    if card and not charts:
        check_nodes(gpus or GPUS, gpus_per_node or 0)
    if device_gib is None:
        device_gib = card.memory_gib if card else DEVICE_GIB
    allowed = read_allowed(allow)
    files = list(read_operations([operations] if operations else [], refuse))
    cache = find_cache()
    counted = list(
        read_operations([cache], lambda wrong: print(f"left out: {wrong}; delete it", file=sys.stderr))
    )
    if charts:
        questions = ask_of_charts(charts, settings or (), values or ())
    else:
        questions = ask_of_model(what[0], gpus or GPUS, settings or (), gpus_per_node or 0)
    answers = answer(questions, files, device_gib, cache if count else None, allowed, counted)
    known = [one for one in answers if isinstance(one, Prediction)]
    speeds = predict_speeds(known, card, measured) if card else None
    if as_json:
        ordered = sorted(answers, key=lambda one: isinstance(one, Unknown))
        rows = [
            one.as_dict() | (speeds.as_dict(one.question.name, price_per_gpu_hour) if speeds else {})
            for one in ordered
        ]
        print(json.dumps(rows, indent=1))
    else:
        look = look_up(files, device_gib, counted)
        fewest = "" if charts else find_fewest(questions[0], known, look, allowed)
        _show(answers, device_gib, fewest, offer=not count, timed=speeds is not None)
        if speeds:
            open_console().print(speeds.build_screen(price_per_gpu_hour))
    if page:
        from stratlab.predict.prediction_page import build_prediction_page
        from stratlab_spec.run_directory import write_whole

        try:
            write_whole(page, build_prediction_page(answers, device_gib))
        except OSError as failure:
            raise UserError(f"--page {page}: {failure.strerror} [SL-page-not-written]") from None
    if not known:
        raise typer.Exit(NOTHING_KNOWN)
    if not any(one.verdict is Verdict.FITS for one in known):
        raise typer.Exit(NOTHING_FITS)


def _is_chart(named: str) -> bool:
    path = Path(named)
    return (path / "Chart.yaml").is_file() or (path.suffix == ".tgz" and not path.is_dir())


def _show(answers: list, device_gib: float, fewest: str, *, offer: bool, timed: bool) -> None:  # type: ignore[type-arg]
    from stratlab.predict.prediction_report import build_screen, list_commands, list_uncounted

    console = open_console()
    console.print(build_screen(answers, device_gib, console.width, fewest, timed))
    for command in [*list_commands(answers)][: 1 if offer else None]:
        print(command)
    if offer and (uncounted := len(list_uncounted(answers))):
        print(
            f"the same line with --count asks the trainer here, where it is installed: {uncounted} to count, "
            "half a minute and more for each, kept for the next time"
        )

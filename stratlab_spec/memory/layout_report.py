"""The command `python -m trainer.layout`: print the layouts of a run of strategy nd before any process starts."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.layout.nd_layout import Layout, count_stages
from stratlab_spec.memory.fit import STATE, Need, choose_layout, largest_device_bytes, measure_needs
from stratlab_spec.memory.model_state import RankMemory, describe_ranks
from stratlab_spec.memory.prediction import GATE
from stratlab_spec.memory.profiles import GIB
from stratlab_spec.models.decoder import DecoderShape, count_parameters, split_layers
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.models.teacher import teacher_problems
from stratlab_spec.schedule import count_micro_batches
from stratlab_spec.settings.config import PREFIX, Config, ConfigError

MOST_LAYOUTS = 12
EXAMPLE = """\
Settings are TRAINER_* variables, or name=value here. Without a batch size, 8 rows per process are taken, one at a time.

  python -m trainer.layout --model qwen2.5-3b --processes 8 --dimensions 3
  python -m trainer.layout --model qwen2.5-3b --processes 8 --dimensions 2 --device-gib 79.2 --operations FOLDER
  python -m trainer.layout --model qwen3-30b-a3b --processes 16 --dimensions 5 seq_len=4096 lora_rank=16
  python -m trainer.layout --processes 8 layout=given pp=2 tp=4     # refused: says what would work, exit code 2"""
DEFAULTS = {"run": "layout", "strategy": "nd", "model": "qwen2.5-3b"}


def main(arguments: list[str]) -> int:
    """Print degrees, reason and memory per rank and of each layout; return 0, or 2 with the broken rules."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.layout",
        description="Show strategy nd's degrees for a model and processes, the reason, and each rank's memory.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--processes", type=_positive, required=True, help="in all, over all nodes")
    parser.add_argument("--model", help=f"preset or hub id (default: {DEFAULTS['model']})")
    parser.add_argument("--dimensions", help="1 to 5 (default: 1)")
    parser.add_argument(
        "--device-gib",
        type=_memory,
        default=None,
        help="memory of one GPU: `auto` leaves out layouts that do not fit (an H100 has 79.2, an H200 139.8); "
        "without it that of the GPUs here",
    )
    parser.add_argument(
        "--operations", type=Path, metavar="FOLDER", help="further operations files, as of `stratlab predict`"
    )
    parser.add_argument("settings", nargs="*", metavar="name=value", help="any setting of run.config")
    given = parser.parse_args(arguments)
    try:
        config = _read_config(given)
        shape = read_shape(config)
        device = given.device_gib * GIB if given.device_gib else largest_device_bytes()
        folders = [given.operations] if given.operations else []
        if given.operations and not given.operations.is_dir():
            raise ConfigError(
                [f"--operations {given.operations}: no such folder [SL-layout-operations-folder]"]
            )
        needs = list(measure_needs(config, given.processes, shape, folders))
        layout = needs[0].layout
        if device and config.layout == "auto":
            choice = choose_layout(needs, device)
            if not choice.fits:
                asked = f"TRAINER_LAYOUT=auto, TRAINER_DIMENSIONS={config.dimensions}"
                why = choice.explain_refusal(config, device / GIB)
                raise ConfigError([f"{asked}: no layout fits; {why} [SL-layout-none-fits]"])
            layout = choice.layout
        if problems := teacher_problems(config):
            raise ConfigError(problems)
        lines = [*_lines(config, shape, layout), "", *_compare(needs, layout, device)]
    except (ConfigError, DataMissing) as failure:
        print(failure, file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, found {text!r} [SL-layout-number]")
    return int(text)


def _memory(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.0 < found < 1e6:
        raise argparse.ArgumentTypeError(f"expected GiB above 0, found {text!r} [SL-layout-device-gib]")
    return found


def _read_config(given: argparse.Namespace) -> Config:
    typed = dict(setting.partition("=")[::2] for setting in given.settings)
    named = {"model": given.model, "dimensions": given.dimensions}
    typed |= {name: value for name, value in named.items() if value is not None}
    variables = {f"{PREFIX}{name.upper()}": value for name, value in typed.items()}
    defaults = {f"{PREFIX}{name.upper()}": value for name, value in DEFAULTS.items()}
    known = {*os.environ, *variables}
    if f"{PREFIX}MODEL_PATH" in known:
        del defaults[f"{PREFIX}MODEL"]
    if not {f"{PREFIX}GLOBAL_BATCH_SIZE", f"{PREFIX}MICRO_BATCH_SIZE"} & known:
        defaults |= {
            f"{PREFIX}GLOBAL_BATCH_SIZE": str(8 * given.processes),
            f"{PREFIX}MICRO_BATCH_SIZE": "1",
        }
    return Config.from_env(defaults | dict(os.environ) | variables)


def _lines(config: Config, shape: DecoderShape, layout: Layout) -> Iterable[str]:
    axes = layout.axes
    yield f"{layout.name}   {config.model_name}, {count_parameters(shape) / 1e9:.2f} billion parameters"
    yield f"why         {layout.reason}"
    if layout.degenerate:
        yield f"degenerate  {layout.dimensions}D without {', '.join(layout.missing)}: kept out of comparisons"
    micro_batches = count_micro_batches(config.global_batch_size, config.micro_batch_size, axes.dp)
    rows = f"{config.micro_batch_size} x {config.seq_len} tokens"
    yield f"per step    {micro_batches} micro-batches of {rows} on dp={axes.dp}"
    yield ""
    yield from _format(_table(config, shape, layout))
    yield ""
    yield "GiB between two steps, without activations and what libraries take. While it computes a rank also holds"
    yield "the parameters that it gathers from its data axes: layer by layer, with a pipeline all at once."


def _compare(needs: Sequence[Need], chosen: Layout, device: float | None) -> Iterable[str]:
    """Return each layout of these dimensions with the memory of its fullest device, in the order in which `auto` tries
    them.
    """
    rows: list[tuple[str, ...]] = [("layout", "from", "GiB", "most of it", "fits")]
    for need in needs[:MOST_LAYOUTS]:
        mark = " *" if need.layout.axes == chosen.axes else ""
        verdict = _judge(need, device / GIB) if device else ""
        rows.append((need.layout.name + mark, need.source, f"{need.gib:.2f}", need.largest, verdict))
    yield from _format(row if device else row[:-1] for row in rows)
    if len(needs) > MOST_LAYOUTS:
        yield f"and {len(needs) - MOST_LAYOUTS} more"
    yield ""
    yield "GiB of the fullest device as `stratlab predict` has it for this batch (its own default: two micro-batches"
    yield f"per stage). near = above {GATE:.0%} of the device, where `auto` still takes it. Where it does not answer,"
    yield f"{STATE}: weights, gradients and optimizer state are the least that it needs. * = chosen."


def _judge(need: Need, device_gib: float) -> str:
    """Return whether a layout fits, by the same limit as `stratlab predict`."""
    if need.exceeds(device_gib):
        return "no"
    if need.source == STATE:
        return "at least"
    return "near" if need.exceeds(GATE * device_gib) else "yes"


def _table(config: Config, shape: DecoderShape, layout: Layout) -> Iterable[tuple[str, ...]]:
    """Return the table; consecutive ranks with the same memory share a line."""
    teaches = ("teacher",) if config.teacher else ()
    names = ("ranks", "layers", "parameters", "trained", "gathered", "weights", "gradients", "optimizer")
    yield (*names, *teaches, "GiB")
    stages = split_layers(shape.layers, count_stages(config, layout.axes.pp))
    first, previous = 0, None
    for one in [*describe_ranks(config, shape, layout), None]:
        if previous is not None and (one is None or _hold(previous) != _hold(one)):
            ranks = str(first) if first == previous.rank else f"{first}-{previous.rank}"
            mine = stages[previous.coordinates["pp"] :: layout.axes.pp]
            layers = ", ".join(str(r.start) if len(r) == 1 else f"{r.start}-{r.stop - 1}" for r in mine)
            counts = (f"{n:,}" for n in (previous.parameters, previous.trained, previous.computed_with))
            sizes = [previous.parameter_bytes, previous.gradient_bytes, previous.optimizer_bytes]
            sizes += [previous.teacher_bytes] if teaches else []
            yield ranks, layers, *counts, *(f"{size / GIB:.2f}" for size in (*sizes, previous.total_bytes))
            first = previous.rank + 1
        previous = one


def _hold(one: RankMemory) -> tuple[int, ...]:
    return one.coordinates["pp"], one.parameters, one.trained


def _format(rows: Iterable[tuple[str, ...]]) -> Iterable[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        texts = [row[0].ljust(widths[0]), row[1].ljust(widths[1])]
        yield "  ".join(texts + [text.rjust(width) for text, width in zip(row[2:], widths[2:], strict=True)])

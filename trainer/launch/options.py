"""Read the options of `python -m trainer`; they become the environment that a chart would give the pod.

Later wins: the file, the existing variables, --set and --processes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stratlab_spec.settings.config import PREFIX, Config, ConfigError
from stratlab_spec.settings.files import Given, build_variables, read_pairs, read_settings_file
from trainer.launch.torchrun import count_devices

DEFAULT_RESULTS: str = Config.model_fields["results"].default
DEFAULT_DIMENSIONS: int = Config.model_fields["dimensions"].default

PER_NODE = "PET_NPROC_PER_NODE"
COUNT = re.compile(r"[1-9][0-9]{0,5}")
RUN, RESULTS, COMPARISON = "TRAINER_RUN", "TRAINER_RESULTS", "TRAINER_COMPARISON"
EPILOG = """\
examples:
  python -m trainer --config training.yaml --set lr=0.01
  python -m trainer --config examples/digits.yaml --set strategy=fsdp --set comparison=mine --processes 2
  TRAINER_RUN=try TRAINER_RESULTS=results TRAINER_STRATEGY=ddp PET_NPROC_PER_NODE=2 python -m trainer

FILE holds settings (model: vit_tiny), or a chart's values, of which it takes run.config, run.processesPerNode and
run.env. A variable TRAINER_<SETTING> wins over FILE, --set over both. A run without a name is called as the chart of
its strategy, as in a rehearsal. Its folder: <results>/<comparison>/<run>.

Settings: python -m trainer.settings --schema. Version: python -m trainer --version.
Exit codes: 0 done, 2 bad configuration, 3 data or model missing, 4 accelerators asked for and not visible,
10 accelerator out of memory, 12 loss not finite, 13 storage full, 14 no progress, 15 deadline passed,
134 a peer was lost, 128+n signal n."""


class _OptionsParser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise ConfigError(f"{message}; python -m trainer --help lists the options [SL-option-unknown]")


def add_settings(parser: argparse.ArgumentParser, config: str, processes: str) -> None:
    """Add the options of every command that takes settings, with the help of --config and --processes."""
    parser.add_argument("--config", metavar="FILE", help=config)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="pairs", help="may be repeated"
    )
    parser.add_argument("--processes", metavar="N", help=processes)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _OptionsParser(
        "python -m trainer",
        description="One run on this machine, or this machine's share of one.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_settings(
        parser,
        "settings as YAML",
        "on this machine; default: FILE's number, else one per visible GPU, else 1",
    )
    return parser.parse_args(arguments)


def name_by_chart(env: Mapping[str, str]) -> str:
    """Name the run like the chart of these settings, so that a rehearsal of the same values has the same folder."""
    strategy = env.get("TRAINER_STRATEGY") or "single"
    if strategy == "nd":
        return f"llm-{env.get('TRAINER_DIMENSIONS') or DEFAULT_DIMENSIONS}d"
    if strategy == "single" and env.get("TRAINER_LORA_RANK", "0") not in ("", "0"):
        return "lora"
    return strategy


def build_environment(
    arguments: Sequence[str],
    env: Mapping[str, str],
    make_name: Callable[[Mapping[str, str]], str] = name_by_chart,
) -> tuple[dict[str, str], list[str]]:
    """Return the whole environment of the run, and sentences about the decisions.

    Args:
        make_name: builds a name from the environment for a run without one.

    Raises:
        ConfigError: naming every option, key or file that is wrong.
    """
    options = parse(arguments)
    file = Given({}) if options.config is None else read_settings_file(Path(options.config))
    pairs = read_pairs(options.pairs)
    found = {**file.variables, **build_variables(file.settings), **env}
    for name in (name for name, value in pairs.items() if value is None):
        found.pop(f"{PREFIX}{name.upper()}", None)
    found |= build_variables(pairs)
    notes = [f"left out of {Path(options.config)}: {', '.join(file.left_out)}"] if file.left_out else []
    # callers that start many runs get the error here, not in a process of each
    given = (("processes", options.processes), (PER_NODE, env.get(PER_NODE) or None))
    for name, value in (*given, ("run.processesPerNode", file.processes or None)):
        if value is not None:
            if problem := count_problem(name, value):
                raise ConfigError(problem)
            found[PER_NODE] = value
            break
    else:
        found[PER_NODE] = str(count_devices(env) or 1)
    if not found.get(RUN):
        if env.get("PET_NNODES", "1").split(":")[0] != "1":
            problem = "run: a run on several machines needs the same name on all of them [SL-run-unnamed]"
            raise ConfigError(f"{problem}: --set run=try")
        found[RUN] = make_name(found)
        notes.append(f"the run is called {found[RUN]}; --set run=NAME calls it otherwise")
    folder = Path(found.get(RESULTS, DEFAULT_RESULTS)) / found.get(COMPARISON, "default") / found[RUN]
    notes.append(f"run directory: {folder}, processes: {found[PER_NODE]}")
    return found, notes


def count_problem(name: str, value: str) -> str:
    """Return why this is not a number of processes or machines; "" if it is."""
    return "" if COUNT.fullmatch(value) else describe_count(name, value)


def describe_count(name: str, value: object) -> str:
    """Return the message for an invalid count."""
    return f"{name}={value!r}: expected a number from 1 [SL-count-wrong]"

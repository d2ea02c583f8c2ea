"""`run_experiment` and `deepspeed_config`: settings by keyword, as the options of `python -m trainer`.

`run_experiment` starts a run as a process of its own, as on a cluster; the notebook does not keep its state.
`deepspeed_config` returns DeepSpeed's configuration for a ZeRO stage, before any process starts and without a GPU;
`python -m trainer.settings deepspeed` prints the same.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from operator import index
from pathlib import Path
from typing import Any, Literal, SupportsIndex

from stratlab_spec import exit_codes as failures
from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.layout.mesh_rules import broken_rules
from stratlab_spec.models.model_specs import lone_value_problem, model_problems
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.files import is_passable
from stratlab_spec.settings.library_rules import placement_problems
from stratlab_spec.settings.wording import OPTIONS, spell
from stratlab_spec.strategies import STRATEGIES
from trainer.launch.options import (
    COMPARISON,
    DEFAULT_RESULTS,
    PER_NODE,
    RESULTS,
    add_settings,
    build_environment,
    describe_count,
    name_by_chart,
)

Scalar = str | int | float | bool | None
GIVEN = {OPTIONS: "1"}


@contextmanager
def named_settings() -> Iterator[None]:
    """Name rejected settings by their keyword in errors: `lr`, not TRAINER_LR."""
    try:
        yield
    except ConfigError as failure:
        raise ConfigError([spell(problem, GIVEN) for problem in failure.problems]) from failure.__cause__
    except DataMissing as failure:
        raise DataMissing(spell(str(failure), GIVEN)) from failure.__cause__


def build_options(
    config: str | Path | None, processes: int | None, settings: Mapping[str, Scalar]
) -> list[str]:
    """Return the options for `python -m trainer`, without the name of the run.

    Raises:
        ConfigError: the path of `config` cannot be passed to a process.
    """
    if config and not is_passable(str(config)):
        problem = f"config={str(config)!r}: holds a character that no process can be given [SL-config-path]"
        raise ConfigError(problem)
    options = ["--config", str(config)] if config else []
    options += ["--processes", str(processes)] if processes is not None else []
    for name, value in settings.items():
        text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        options += ["--set", f"{name}={text}"]
    return options or ["--set", "strategy=single"]


def read_settings(
    options: list[str], make_name: Callable[[Mapping[str, str]], str] = name_by_chart
) -> tuple[Config, str]:
    """Return (the settings of these options and of the environment, processes on this machine as typed).

    Args:
        make_name: for a run without a name.

    Raises:
        ConfigError: naming every problem.
    """
    found, _ = build_environment(options, os.environ, make_name)
    return Config.from_env(found), found[PER_NODE]


LAST_LINES = 20


class ExperimentFailed(RuntimeError):
    """A run that did not end with 0.

    Attributes:
        exit_code: of the trainer (docs/stops.md).
        folder: the run directory with the run's results until then.
    """

    def __init__(self, exit_code: int, folder: Path, text: str) -> None:
        super().__init__(f"{failures.reason(exit_code)} (exit code {exit_code}): {folder}\n{text}")
        self.exit_code = exit_code
        self.folder = folder


@named_settings()
def run_experiment(
    *, config: str | Path | None = None, processes: int | None = None, echo: bool = True, **settings: Scalar
) -> Path:
    """Train like `python -m trainer --config FILE --set key=value`, and return the run directory.

    Args:
        config: a file of settings, or of a chart's values; `settings` override it.
        processes: on this machine; None = the file's number, else one per GPU, else one.
        echo: write the run's output to standard error while it runs.
        settings: by their names (`python -m trainer.settings --schema`); None removes a setting of the file. Without
            `run` each call is a new run, named after its strategy and the time.

    Raises:
        ConfigError: before anything is started, naming every wrong value, or every broken rule between right ones.
        ExperimentFailed: the run did not end with 0; 2 if settings do not fit processes or data.
    """
    options = build_options(config, processes, settings)
    asked, _ = read_settings(options, name_by_time)
    options += ["--set", f"run={asked.run}"]
    folder = Path(asked.results, asked.comparison, asked.run)
    code, text = _follow([sys.executable, "-m", "trainer", *options], echo)
    if code:
        raise ExperimentFailed(code, folder, text)
    return folder


def name_by_time(env: Mapping[str, str], now: datetime | None = None) -> str:
    """Return `ddp-20261125-154400`, or with -2, -3 ... if that folder exists: a cell may be run again."""
    name = f"{name_by_chart(env)}-{now or datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = Path(env.get(RESULTS, DEFAULT_RESULTS)) / env.get(COMPARISON, "default")
    number, free = 1, name
    while (folder / free).exists():
        number += 1
        free = f"{name}-{number}"
    return free


def _follow(command: list[str], echo: bool) -> tuple[int, str]:
    """Return exit code and last lines. An interrupt is passed on, and the run saves a checkpoint before it ends."""
    last: deque[str] = deque(maxlen=LAST_LINES)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout
    try:
        for line in process.stdout:
            last.append(line)
            if echo:
                print(line, end="", file=sys.stderr, flush=True)  # a notebook shows it in the cell
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    return failures.from_status(process.wait()), "".join(last)


Device = Literal["cuda", "cpu"]
STAGES = tuple(name for name, row in STRATEGIES.items() if row.deepspeed_stage)


def deepspeed_config(
    *,
    config: str | Path | None = None,
    processes: int | None = None,
    nodes: int = 1,
    device: Device = "cuda",
    labels: int = 0,
    channels: int = 0,
    **settings: Scalar,
) -> dict[str, Any]:
    """Return the content of the run's deepspeed.json: every key of DeepSpeed's, without relying on its defaults.

    Args:
        config: a file of settings, or of a chart's values; `settings` override it.
        processes: on each node; None = the file's number, else one per GPU, else one.
        device: that computes; on a CPU memory is not pinned, and the precision `auto` is fp32 instead of bf16.
        labels, channels: of an image data set, on which the model's size depends; 0 = as known, else 1000 and 3.
        settings: by their names, as of `run_experiment`; `strategy` is one of zero1, zero2, zero3 and zeropp.

    Raises:
        ConfigError: naming every broken rule, or a strategy that is not DeepSpeed's.
        DataMissing: a model whose shape is not available.
    """
    return build_deepspeed(build_options(config, processes, settings), nodes, device, labels, channels)


@named_settings()
def build_deepspeed(
    options: list[str], nodes: int, device: str, labels: int, channels: int
) -> dict[str, Any]:
    """Do the same as `deepspeed_config`, with options as typed for `python -m trainer`."""
    asked, processes = read_settings(options)
    per_node = int(processes)
    if isinstance(nodes, bool) or not isinstance(nodes, SupportsIndex) or index(nodes) < 1:
        raise ConfigError(describe_count("nodes", nodes))
    if problems := list(dict.fromkeys(_find_problems(asked, nodes, per_node, device))):
        raise ConfigError(problems)
    # late: a wrong setting is named at once
    from stratlab_spec.models.pictures import find_pictures
    from trainer.distributed.world import Precision, resolve_precision
    from trainer.engines.deepspeed_config import build_settings, measure_sizes
    from trainer.memory_estimation.steps import build_empty_model

    model = build_empty_model(asked, find_pictures(asked, labels, channels))
    on_gpu = Precision("bf16" if asked.precision == "auto" else asked.precision)
    return build_settings(
        asked,
        on_gpu if device == "cuda" else resolve_precision(asked, device),
        world_size=nodes * per_node,
        processes_per_node=per_node,
        sizes=measure_sizes(model),
        device_type=device,
    )


def _find_problems(asked: Config, nodes: int, per_node: int, device: str) -> list[str]:
    if asked.strategy not in STAGES:
        return [
            f"TRAINER_STRATEGY={asked.strategy!r}: not DeepSpeed's; expected one of {', '.join(STAGES)} "
            "[SL-not-deepspeed]"
        ]
    if device not in ("cuda", "cpu"):
        return [f"device={device!r}: expected cuda or cpu [SL-device-kind]"]
    ranks = nodes * per_node
    rules = broken_rules(asked, ranks, per_node) + placement_problems(asked, ranks, per_node)
    lone_value = lone_value_problem(asked, ranks)
    return rules + model_problems(asked) + ([lone_value] if lone_value else [])


EXAMPLES = """\
examples:
  python -m trainer.settings deepspeed --set strategy=zero3 --set model=vit_huge --processes 8
  python -m trainer.settings deepspeed --config examples/digits.yaml --set strategy=zeropp --processes 2 --nodes 2

Labels and channels of the data set, where they are not known: --labels 37 --channels 3. Exit codes: 0 done,
2 bad configuration, 3 model missing."""


def main(arguments: Sequence[str]) -> int:
    """Print the JSON; return 0, or 2 or 3 with a sentence per broken rule."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.settings deepspeed",
        description="DeepSpeed's configuration of a ZeRO stage, as a run of these settings gives it to DeepSpeed.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_settings(
        parser, "settings as YAML, or a chart's values", "on each node; default: FILE's number, else 1"
    )
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="machines (1)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="computing device (cuda)")
    parser.add_argument("--labels", type=int, default=0, metavar="N", help="classes of the images")
    parser.add_argument("--channels", type=int, default=0, metavar="N", help="channels of the images")
    given = parser.parse_args(arguments)
    named = (("--config", given.config), ("--processes", given.processes))
    options = [word for name, value in named if value is not None for word in (name, value)]
    options += [word for pair in given.pairs for word in ("--set", pair)]
    try:
        found = build_deepspeed(options, given.nodes, given.device, given.labels, given.channels)
    except (ConfigError, DataMissing) as failure:
        print(failure, file=sys.stderr)
        return failures.exit_code(failure)
    print(json.dumps(found, indent=2))
    return failures.DONE

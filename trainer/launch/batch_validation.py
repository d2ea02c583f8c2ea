"""Check many runs at once without starting them: `python -m trainer.program check < runs.json`.

Reads {run: environment of its pods}, prints {run: {"code": exit code, "problems": [sentence], "notes": [sentence]}}. A
set of runs is checked before the first one starts, so that no run of it fails later for a setting.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from stratlab_spec import exit_codes as failures
from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.fields import MODELS
from stratlab_spec.settings.wording import spell

HELD_OUT_BY = ("dataset", "dataset_path", "image_column", "validation_fraction", "mode")
"""Settings that decide which pictures a run holds out."""


def check_shape(env: Mapping[str, str]) -> dict[str, Any]:
    """Check only the settings on which memory depends, as `check_run` does: not data, length or weights.

    It does not look at models or teachers in a folder or on the hub.
    """
    from stratlab_spec.layout.mesh_rules import shape_problems
    from trainer.launch.preflight import read_pods

    try:
        config = Config.from_env(env)
        pods = read_pods(env)
        is_known = not config.model_path and "/" not in config.model and config.teacher in ("", *MODELS)
        problems = shape_problems(config, pods.world_size, pods.processes_per_node) if is_known else []
    except ConfigError as failure:
        problems = failure.problems
    return _answer(failures.BAD_CONFIG if problems else failures.DONE, problems, env, True)


def check_run(
    env: Mapping[str, str], *, elsewhere: bool, replaces: bool, opened: set[tuple[Any, ...]]
) -> dict[str, Any]:
    """Return the exit code and the problems of one run: DONE and an empty list if it may start.

    Args:
        elsewhere: the run is for another machine; checks that need data, folders or devices are skipped.
        replaces: the run of this name is removed before it starts.
        opened: keys of the held-out pictures already opened for another run; this run's key is added.
    """
    from trainer.launch.preflight import check, check_elsewhere, read_pods
    from trainer.launch.rendezvous import Lease

    notes: list[str] = []
    try:
        config = Config.from_env(env)
        pods = read_pods(env)
        if elsewhere:
            check_elsewhere(config, pods)
        else:
            if config.mode == "train":
                Lease(RunDirectory(config.results, config.comparison, config.run), "", "").check()
            held_out = tuple(getattr(config, name) for name in HELD_OUT_BY)
            check(
                config,
                pods.world_size,
                {**os.environ, **env},
                replaces=replaces,
                makes_caches=False,
                opens_pictures=held_out not in opened,
                tell=notes.append,
            )
            opened.add(held_out)
    except ConfigError as failure:
        return _answer(failures.BAD_CONFIG, failure.problems, env, elsewhere)
    except DataMissing as failure:
        return _answer(failures.DATA_MISSING, str(failure).splitlines(), env, elsewhere)
    return _answer(failures.DONE, [], env, elsewhere, notes)


def _answer(
    code: int, problems: Iterable[str], env: Mapping[str, str], elsewhere: bool, notes: Iterable[str] = ()
) -> dict[str, Any]:
    sentences = {"problems": problems, "notes": notes}
    return {"code": code} | {
        kind: [spell(each, env, elsewhere=elsewhere) for each in found] for kind, found in sentences.items()
    }


def main(arguments: list[str]) -> int:
    """Check the runs on standard input; return 0 for any result."""
    parser = argparse.ArgumentParser(
        "python -m trainer.program check",
        description="Check the settings of runs, as {run: environment} on standard input, without starting them.",
        epilog="""example: echo '{"a": {"TRAINER_RUN": "a", "TRAINER_LR": "-1"}}' | python -m trainer.program check""",
    )
    parser.add_argument(
        "--elsewhere", action="store_true", help="the runs are for another machine: do not check folders"
    )
    parser.add_argument(
        "--shape", action="store_true", help="check only settings on which memory depends, not data or length"
    )
    parser.add_argument(
        "--replace", action="store_true", help="runs with these names are removed before they start"
    )
    options = parser.parse_args(arguments)
    runs = json.load(sys.stdin)
    opened: set[tuple[Any, ...]] = set()
    found = {
        name: check_shape(env)
        if options.shape
        else check_run(env, elsewhere=options.elsewhere, replaces=options.replace, opened=opened)
        for name, env in runs.items()
    }
    print(json.dumps(found))
    return failures.DONE

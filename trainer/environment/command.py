"""`python -m trainer.environment`: the check on this machine, or this machine's share of it."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from trainer import failures
from trainer.environment.launcher import check_environment
from trainer.launch.stop import Stop, Stopped
from trainer.launch.termination import end
from trainer.launch.visibility import count_devices
from trainer.settings.config import Config, ConfigError

NVIDIA = "nvidia.com/gpu"
LIMIT_S = 120
VARIABLES = {
    "processes": "PET_NPROC_PER_NODE",
    "accelerator": "TRAINER_ACCELERATOR",
    "results": "TRAINER_RESULTS",
    "least_gb_per_s": "TRAINER_LEAST_GB_PER_S",
    "wait_s": "TRAINER_WAIT_S",
    "limit_s": "TRAINER_COLLECTIVE_TIMEOUT_S",
}
"""Option -> where a chart would have put it."""
EPILOG = """\
examples:
  python -m trainer.environment
  python -m trainer.environment --processes 2 --results results --json
  python -m trainer.environment --processes 8 --least-gb-per-s 200

In pods: helm install check charts/ddp --set run.config.mode=check --set run.nodes=2, with the values of the run.
On several machines: the PET_* variables of a run (docs/start.md), the same command on each.
Exit codes: 0 nothing is missing, 1 there is a problem, 2 bad configuration, 143 stopped."""


def main(arguments: Sequence[str]) -> int:
    """Puts what was typed where a chart would have put it, and checks."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    stop = Stop()
    stop.listen()
    try:
        os.environ.update(_build_variables(options))
        return check_environment(Config.from_env(os.environ), stop, as_json=options.as_json)
    except ConfigError as failure:
        return end(failures.BAD_CONFIG, _name_options(str(failure), options))
    except Stopped:
        return end(failures.TERMINATED, "before the ranks were there")


def _name_options(text: str, options: argparse.Namespace) -> str:
    """What is wrong in the words that were typed."""
    for option, variable in VARIABLES.items():
        if getattr(options, option) is not None:
            text = text.replace(f"{variable}=", f"--{option.replace('_', '-')}=")
    return text


def _build_variables(options: argparse.Namespace) -> dict[str, str]:
    devices = count_devices(os.environ)
    processes = options.processes or os.environ.get("PET_NPROC_PER_NODE") or str(devices or 1)
    accelerator = options.accelerator
    if accelerator is None:
        accelerator = os.environ.get("TRAINER_ACCELERATOR") or (NVIDIA if devices else "")
    limit = options.limit_s or os.environ.get("TRAINER_COLLECTIVE_TIMEOUT_S") or str(LIMIT_S)
    given = {variable: getattr(options, option) for option, variable in VARIABLES.items()}
    given |= {"TRAINER_MODE": "check", "TRAINER_RUN": os.environ.get("TRAINER_RUN", "check")}
    given |= {"PET_NPROC_PER_NODE": processes, "TRAINER_ACCELERATOR": accelerator}
    given |= {"TRAINER_COLLECTIVE_TIMEOUT_S": limit}
    return {name: value for name, value in given.items() if value is not None}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m trainer.environment",
        description="Whether this machine, or each of several, has what a run needs: one line per thing, with what to "
        "do where it is missing.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--processes", metavar="N", help="on this machine; else one per visible GPU, else 1")
    parser.add_argument("--results", metavar="DIR", help="folder of the results (results)")
    parser.add_argument(
        "--accelerator",
        metavar="RESOURCE",
        help=f"of which each process gets one; {NVIDIA} where GPUs are visible",
    )
    parser.add_argument(
        "--least-gb-per-s", metavar="X", help="bus bandwidth that an all-reduce must reach; else by the links"
    )
    parser.add_argument("--wait-s", metavar="S", help="for the other machines (600)")
    parser.add_argument("--limit-s", metavar="S", help=f"for a process to have measured all ({LIMIT_S})")
    parser.add_argument("--json", action="store_true", dest="as_json", help="findings and facts as JSON")
    return parser

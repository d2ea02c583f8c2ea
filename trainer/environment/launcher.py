"""Launch the check: wait for all pods, start the ranks, and report the verdict.

Pods of `mode: check` enter through `check_environment`; `python -m trainer.environment` enters through `main` and
checks this machine, or this machine's share. The first pod judges and sends the verdict to the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stratlab_spec import exit_codes as failures
from stratlab_spec.exit_codes import AcceleratorsMissing, PeerLost
from stratlab_spec.findings import Finding
from stratlab_spec.run_directory import write_json
from stratlab_spec.settings.config import Config, ConfigError
from trainer.environment.assessment import judge
from trainer.environment.board import FOLDER, POLL_S, Board, find_pod_index, open_board
from trainer.environment.findings import PROBLEM, STOPPED, Asked, describe, problem
from trainer.launch import torchrun as visibility
from trainer.launch.ledger import end, leave_last_words, read_pod_name
from trainer.launch.preflight import Pods, read_pods
from trainer.launch.stop import LauncherStopped, Stop, end_ranks
from trainer.launch.torchrun import count_devices, run_ranks

START_S = 20.0
"""Time for torch to start the ranks of all pods, before the limit counts."""
FOUND = 1
"""Exit code for problems. It is final: another attempt would give the same result."""
LAST_WORDS_S = 20.0
"""Time for ranks of other pods after the first pod's ranks ended, and for other pods to read the verdict."""

log = logging.getLogger("trainer")


def check_environment(config: Config, stop: Stop, *, as_json: bool = False) -> int:
    """Run this pod's share of the check; return exit code 0, FOUND for problems, or 143 if stopped.

    Args:
        as_json: the first pod prints a list of findings with the facts instead of the table.
    """
    pods = read_pods(os.environ)
    index = find_pod_index(os.environ, pods.nodes)
    try:
        board = open_board(os.environ, index, config.wait_s)
    except PeerLost as failure:
        return _tell([_absent([0], config.wait_s, str(failure))], {}, as_json)
    try:
        return _take_part(config, pods, index, board, stop, as_json)
    except Exception as failure:
        if failures.exit_code(failure) != failures.PEER_LOST:
            raise
        seen = f"lost pod 0 (counted from 0): {str(failure).splitlines()[0]} [SL-pod-lost]"
        return _tell([problem("pods", seen, "read its log, check its node, then check again")], {}, as_json)


def _take_part(config: Config, pods: Pods, index: int, board: Board, stop: Stop, as_json: bool) -> int:
    if index == 0:
        board.post("token", uuid.uuid4().hex[:8])
    refusal = ""
    try:
        visibility.check(config.accelerator, pods.processes_per_node, os.environ)
    except AcceleratorsMissing as missing:
        refusal = str(missing)
    board.post(f"pod/{index}", {"name": read_pod_name(os.environ), "refusal": refusal})
    wanted, others = [f"pod/{each}" for each in range(pods.nodes)], {*range(1, pods.nodes)}
    if late := board.wait(wanted, config.wait_s, until="verdict"):
        if index and board.read("verdict"):
            return _follow(board, index, 0.0, as_json)
        absent = [int(name.split("/")[1]) for name in late]
        return _conclude(board, others - {*absent, index}, [_absent(absent, config.wait_s)], {}, as_json)
    ends = _run(config, pods, index, stop)
    if ends is None:
        return end(failures.TERMINATED, stop.asked_by)
    if index:
        return _follow(board, index, config.collective_timeout_s, as_json)
    asked = Asked(
        nodes=pods.nodes,
        per_node=pods.processes_per_node,
        results=config.results,
        least_gb_per_s=config.least_gb_per_s,
        limit_s=config.collective_timeout_s,
    )
    _wait_until_done(board, asked)
    facts: dict[int, Any] = {
        rank: found for rank in range(asked.ranks) if (found := board.read(f"rank/{rank}"))
    }
    stages = {rank: stage for rank in range(asked.ranks) if (stage := board.read(f"stage/{rank}"))}
    present = [board.read(name) for name in wanted]
    refusals = {pod["name"]: pod["refusal"] for pod in present if pod["refusal"]}
    findings = judge(asked, facts, stages, refusals, ends)
    content = {"schema_version": 1, "host": socket.gethostname(), **_as_content(findings, facts)}
    with suppress(OSError):  # on the results volume, if it is writable, under the run's name
        write_json(Path(config.results) / FOLDER / f"{config.run}.json", content)
    return _conclude(board, others, findings, facts, as_json)


def _conclude(
    board: Board, others: set[int], findings: list[Finding], facts: dict[int, Any], as_json: bool
) -> int:
    """Report the verdict, first in this pod: mpirun ends all pods after the first failed one."""
    code = _tell(findings, facts, as_json)
    board.post("verdict", _as_content(findings, facts)["findings"])
    board.wait([f"told/{other}" for other in others], LAST_WORDS_S)
    return code


def _run(config: Config, pods: Pods, index: int, stop: Stop) -> dict[int, str] | None:
    """Return the ends of this pod's failed ranks, by rank; None if this process was stopped.

    It kills ranks that are not done in time, because a hanging rank does not end.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    first, late = index * pods.processes_per_node, threading.Event()

    def end_late_ranks() -> None:
        late.set()
        end_ranks(0.0)

    timer = threading.Timer(config.collective_timeout_s + START_S, end_late_ranks)
    timer.daemon = True
    timer.start()
    try:
        run_ranks("trainer.environment.rank", pods.processes_per_node, config.grace_s, stop)
    except ChildFailedError as failure:
        codes = {first + each.local_rank: each.exitcode for each in failure.failures.values()}
        return {} if late.is_set() else explain_ends(codes)
    except SignalException:
        return None
    except Exception as failure:  # for example, the rendezvous failed
        if stop.asked_at is not None:
            log.warning("torch's launcher, while stopping: %r", failure)
            return None
        log.error("%s", failure)
        return {first: f"not started: {failure}"}
    finally:
        timer.cancel()
    return {}


def explain_ends(codes: Mapping[int, int]) -> dict[int, str]:
    """Explain the ends of a pod's ranks by exit code, negative for a signal.

    STOPPED marks ranks that torch ended after another rank failed.
    """
    found = {rank: failures.from_status(code) for rank, code in codes.items()}
    _, culprit = failures.first_failure(found)
    return {
        rank: failures.reason(code) if code == culprit or code != failures.TERMINATED else STOPPED
        for rank, code in found.items()
    }


def _wait_until_done(board: Board, asked: Asked) -> None:
    """Wait for the ranks of other pods, which end soon after this pod's ranks."""
    others = range(asked.per_node, asked.ranks)
    deadline = time.monotonic() + LAST_WORDS_S
    while time.monotonic() < deadline:
        if all(board.read(f"stage/{rank}") == "done" for rank in others):
            return
        time.sleep(POLL_S)


def _follow(board: Board, index: int, limit_s: float, as_json: bool) -> int:
    """Wait for the first pod's verdict in another pod, and report it too."""
    if board.wait(["verdict"], limit_s + LAST_WORDS_S):
        return _tell([_absent([0], limit_s)], {}, as_json)
    findings = [Finding(**each) for each in board.read("verdict")]
    board.post(f"told/{index}", True)
    return _tell(findings, {}, as_json)


def _absent(indices: list[int], seconds: float, why: str = "") -> Finding:
    pods, cause = ", ".join(map(str, indices)), f" ({why})" if why else ""
    return problem(
        "pods",
        f"pod {pods} (counted from 0) did not connect within {seconds:.0f} s{cause} [SL-pod-absent]",
        "stratlab watch shows why a pod is not scheduled; a running pod's log shows name resolution, network policies",
    )


def _tell(findings: list[Finding], facts: dict[int, Any], as_json: bool) -> int:
    """Print the findings, write the problems to the pod's termination message, and return the exit code."""
    print(json.dumps(_as_content(findings, facts), indent=1) if as_json else describe(findings), flush=True)
    problems = [f"{each.subject}: {each.seen}" for each in findings if each.state == PROBLEM]
    code = FOUND if problems else failures.DONE
    reason = "the check found problems" if problems else failures.reason(failures.DONE)
    leave_last_words(code, reason, "\n".join(problems))
    return code


def _as_content(findings: list[Finding], facts: dict[int, Any]) -> dict[str, Any]:
    return {"findings": [dataclasses.asdict(each) for each in findings], "ranks": facts}


NVIDIA = "nvidia.com/gpu"
LIMIT_S = 120
OPTIONS = {
    "processes": ("PET_NPROC_PER_NODE", "N", "processes here; default: one per visible GPU, else 1"),
    "results": ("TRAINER_RESULTS", "DIR", "folder of the results (default: results)"),
    "accelerator": (
        "TRAINER_ACCELERATOR",
        "RESOURCE",
        f"each process gets one; default: {NVIDIA} if GPUs are visible",
    ),
    "least_gb_per_s": (
        "TRAINER_LEAST_GB_PER_S",
        "X",
        "bus bandwidth that an all-reduce must reach; default: by the links",
    ),
    "wait_s": ("TRAINER_WAIT_S", "S", "seconds to wait for the other machines (default: 600)"),
    "limit_s": ("TRAINER_COLLECTIVE_TIMEOUT_S", "S", f"seconds to measure (default: {LIMIT_S})"),
}
"""Option -> the variable that a chart would set, its metavar and its help."""
EPILOG = """\
examples:
  python -m trainer.environment
  python -m trainer.environment --processes 2 --results results --json
  python -m trainer.environment --processes 8 --least-gb-per-s 200

In pods: helm install check charts/ddp --set run.config.mode=check --set run.nodes=2, with the values of the run.
On several machines: set the PET_* variables of a run (docs/local.md) and run the same command on each.
Exit codes: 0 nothing is missing, 1 problems, 2 bad configuration, 143 stopped."""


def main(arguments: Sequence[str]) -> int:
    """Set the variables of a chart from the options, and run the check."""
    parser = argparse.ArgumentParser(
        "python -m trainer.environment",
        description="Check that one or several machines meet the needs of a run. Each line shows one result and, for a "
        "problem, its fix.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for option, (_, metavar, what) in OPTIONS.items():
        parser.add_argument(_typed(option), metavar=metavar, help=what)
    parser.add_argument("--json", action="store_true", dest="as_json", help="findings and facts as JSON")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    stop = Stop()
    stop.listen()
    try:
        os.environ.update(_build_variables(options))
        return check_environment(Config.from_env(os.environ), stop, as_json=options.as_json)
    except ConfigError as failure:
        text = str(failure)
        for option, (variable, _, _) in OPTIONS.items():
            if getattr(options, option) is not None:  # show the option that the user typed
                text = text.replace(f"{variable}=", f"{_typed(option)}=")
        return end(failures.BAD_CONFIG, text)
    except LauncherStopped:
        return end(failures.TERMINATED, "before the ranks started")


def _typed(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _build_variables(options: argparse.Namespace) -> dict[str, str]:
    devices = count_devices(os.environ)
    given = {name: getattr(options, option) for option, (name, _, _) in OPTIONS.items()}
    given |= {"TRAINER_MODE": "check", "TRAINER_RUN": os.environ.get("TRAINER_RUN", "check")}
    for name, usual in (("PET_NPROC_PER_NODE", devices or 1), ("TRAINER_COLLECTIVE_TIMEOUT_S", LIMIT_S)):
        given[name] = given[name] or os.environ.get(name) or str(usual)
    if given["TRAINER_ACCELERATOR"] is None:
        given["TRAINER_ACCELERATOR"] = os.environ.get("TRAINER_ACCELERATOR") or (NVIDIA if devices else "")
    return {name: value for name, value in given.items() if value is not None}

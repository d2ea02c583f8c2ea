"""The launcher of the check: calls the roll, starts the ranks; in the first pod it judges, and tells the others.

Pods of `mode: check` come in by `check_environment`, `python -m trainer.environment` by `main`: the check on this
machine, or this machine's share of it.
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
from trainer.environment.board import (
    FOLDER,
    POLL_S,
    PROBLEM,
    STOPPED,
    Asked,
    Board,
    describe,
    find_pod_index,
    open_board,
    problem,
)
from trainer.launch import torchrun as visibility
from trainer.launch.ledger import end, leave_last_words, read_pod_name
from trainer.launch.preflight import Pods, read_pods
from trainer.launch.stop import LauncherStopped, Stop, end_ranks
from trainer.launch.torchrun import count_devices, run_ranks

START_S = 20.0
"""For torch to start the ranks of all pods, before their time counts."""
FOUND = 1
"""Exit code: there is a problem. Final: another attempt would find it again."""
LAST_WORDS_S = 20.0
"""For ranks of other pods when those of the first have ended, and for its verdict to be read."""

log = logging.getLogger("trainer")


def check_environment(config: Config, stop: Stop, *, as_json: bool = False) -> int:
    """Runs this pod's share of the check; its exit code: 0, FOUND where there is a problem, 143 where it was stopped.

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
        seen = f"pod 0 (counted from 0) was there and is lost: {str(failure).splitlines()[0]} [SL-pod-lost]"
        return _tell([problem("pods", seen, "its log and its node; then check again")], {}, as_json)


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
    with suppress(OSError):  # on the results volume, if that takes it, under the run's name
        write_json(Path(config.results) / FOLDER / f"{config.run}.json", content)
    return _conclude(board, others, findings, facts, as_json)


def _conclude(
    board: Board, others: set[int], findings: list[Finding], facts: dict[int, Any], as_json: bool
) -> int:
    """Says the verdict, first here: mpirun ends all pods with the first one that has failed."""
    code = _tell(findings, facts, as_json)
    board.post("verdict", _as_content(findings, facts)["findings"])
    board.wait([f"told/{other}" for other in others], LAST_WORDS_S)
    return code


def _run(config: Config, pods: Pods, index: int, stop: Stop) -> dict[int, str] | None:
    """How ranks of this pod ended that did not end well, by rank; None: this process was told to stop.

    A rank that is not done in time is killed here: whatever it hangs in, it does not get further by itself.
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
    except Exception as failure:  # a rendezvous that did not come about
        if stop.asked_at is not None:
            log.warning("torch's launcher, told to stop: %r", failure)
            return None
        log.error("%s", failure)
        return {first: f"not started: {failure}"}
    finally:
        timer.cancel()
    return {}


def explain_ends(codes: Mapping[int, int]) -> dict[int, str]:
    """Of the ranks of a pod by exit code, negative for a signal; STOPPED, which torch has ended with a failed one."""
    found = {rank: failures.from_status(code) for rank, code in codes.items()}
    _, culprit = failures.first_failure(found)
    return {
        rank: failures.reason(code) if code == culprit or code != failures.TERMINATED else STOPPED
        for rank, code in found.items()
    }


def _wait_until_done(board: Board, asked: Asked) -> None:
    """The own ranks have ended, so those of other pods are about to."""
    others = range(asked.per_node, asked.ranks)
    deadline = time.monotonic() + LAST_WORDS_S
    while time.monotonic() < deadline:
        if all(board.read(f"stage/{rank}") == "done" for rank in others):
            return
        time.sleep(POLL_S)


def _follow(board: Board, index: int, limit_s: float, as_json: bool) -> int:
    """In another pod than the first: waits for the verdict and says it too."""
    if board.wait(["verdict"], limit_s + LAST_WORDS_S):
        return _tell([_absent([0], limit_s)], {}, as_json)
    findings = [Finding(**each) for each in board.read("verdict")]
    board.post(f"told/{index}", True)
    return _tell(findings, {}, as_json)


def _absent(indices: list[int], seconds: float, why: str = "") -> Finding:
    pods, cause = ", ".join(map(str, indices)), f" ({why})" if why else ""
    return problem(
        "pods",
        f"pod {pods} (counted from 0) has not come within {seconds:.0f} s{cause} [SL-pod-absent]",
        "stratlab watch says what keeps a pod from a node; its log, where it runs: name resolution, network policies",
    )


def _tell(findings: list[Finding], facts: dict[int, Any], as_json: bool) -> int:
    """Prints them, leaves the problems as the pod's last words; the exit code."""
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
    "processes": ("PET_NPROC_PER_NODE", "N", "on this machine; else one per visible GPU, else 1"),
    "results": ("TRAINER_RESULTS", "DIR", "folder of the results (results)"),
    "accelerator": (
        "TRAINER_ACCELERATOR",
        "RESOURCE",
        f"of which each process gets one; {NVIDIA} where GPUs are visible",
    ),
    "least_gb_per_s": (
        "TRAINER_LEAST_GB_PER_S",
        "X",
        "bus bandwidth that an all-reduce must reach; else by the links",
    ),
    "wait_s": ("TRAINER_WAIT_S", "S", "for the other machines (600)"),
    "limit_s": ("TRAINER_COLLECTIVE_TIMEOUT_S", "S", f"for a process to have measured all ({LIMIT_S})"),
}
"""Option -> where a chart would have put it, its metavar and its help."""
EPILOG = """\
examples:
  python -m trainer.environment
  python -m trainer.environment --processes 2 --results results --json
  python -m trainer.environment --processes 8 --least-gb-per-s 200

In pods: helm install check charts/ddp --set run.config.mode=check --set run.nodes=2, with the values of the run.
On several machines: the PET_* variables of a run (docs/local.md), the same command on each.
Exit codes: 0 nothing is missing, 1 there is a problem, 2 bad configuration, 143 stopped."""


def main(arguments: Sequence[str]) -> int:
    """Puts what was typed where a chart would have put it, and checks."""
    parser = argparse.ArgumentParser(
        "python -m trainer.environment",
        description="Whether this machine, or each of several, has what a run needs: one line per thing, with what to "
        "do where it is missing.",
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
            if getattr(options, option) is not None:  # what is wrong in the words that were typed
                text = text.replace(f"{variable}=", f"{_typed(option)}=")
        return end(failures.BAD_CONFIG, text)
    except LauncherStopped:
        return end(failures.TERMINATED, "before the ranks were there")


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

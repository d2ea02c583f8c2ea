"""The pod's entry point: `python -m trainer`, also for use by hand with --config FILE and --set key=value.

It checks settings before torch is imported, starts torch's elastic launcher on `trainer.worker`, and passes the first
failing rank's exit code on. torchrun itself always ends with 1, which does not separate a wrong setting from a lost
peer. While the ranks work, this process replays their metrics to MLflow.
"""

from __future__ import annotations

import sys

from trainer.launch.stop import LauncherStopped, Stop, end_ranks, ignore_further, listen_early

if __name__ == "__main__":
    listen_early()

import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from trainer.installation import packages_needed, read_version

if __name__ == "__main__" and sys.argv[1:] == ["--version"]:
    print(f"stratlab trainer {read_version()}")
    sys.exit(0)
with packages_needed():
    from stratlab_spec import exit_codes as failures
    from stratlab_spec.exit_codes import AcceleratorsMissing, OutOfMemory, PeerLost
    from stratlab_spec.run_directory import RunDirectory
    from stratlab_spec.settings.config import Config, rename_variables
    from stratlab_spec.settings.wording import OPTIONS, SpellingFormatter, spell
    from trainer.distributed import read_node, trust_given
    from trainer.environment.launcher import check_environment
    from trainer.launch import preflight
    from trainer.launch import torchrun as accelerators
    from trainer.launch.ledger import (
        LONGEST_SENTENCE,
        Ledger,
        describe_end,
        drop_unwritten,
        end,
        explain_planted_kill,
        read_pod_name,
    )
    from trainer.launch.memory_limits import ContainerMemory, Ladder, check_memory
    from trainer.launch.mlflow_sender import Sender
    from trainer.launch.mpi import leave_to_culprit
    from trainer.launch.options import build_environment
    from trainer.launch.rendezvous import (
        Lease,
        Peers,
        holds_rank_0,
        read_node_rank,
        refuse_finished,
        wait_for_host,
    )
    from trainer.launch.tensorboard import EventWriter
    from trainer.launch.torchrun import run_ranks
    from trainer.launch.watchdog import Watchdog

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

KILLED = 128 + signal.SIGKILL
UNEXPLAINED_KILL = (
    "for lack of host memory (`dmesg` then reports it), or by a kill -9 from outside [SL-kill-unexplained]"
)
LAST_TRY_MARGIN_S = 5.0  # of the grace period, after the last try to send metrics
log = logging.getLogger("trainer")


def main(arguments: list[str]) -> int:
    """Run the pod's share of the run; returns its exit code."""
    console = logging.StreamHandler(sys.stderr)
    console.setFormatter(SpellingFormatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[console])
    stop = Stop()
    stop.listen()
    try:
        trust_given(os.environ)
        notes = _apply(arguments) if arguments else []
        rename_variables(os.environ)
        config = Config.from_env(os.environ)
        if config.mode != "check":
            return _run(config, stop, notes)
        for note in notes:
            log.info(note)
        return check_environment(config, stop)
    except tuple(failures.REFUSALS) as failure:
        stop.settle()
        return end(failures.exit_code(failure), spell(str(failure), os.environ))
    except LauncherStopped:
        return end(failures.TERMINATED, "before the launcher was there")
    except OSError as failure:
        stop.settle()
        if not failures.is_storage_full(failure):
            raise
        return end(failures.STORAGE_FULL, str(failure))


def _apply(arguments: list[str]) -> list[str]:
    """Put the options into the environment, which the ranks also read; return notes to print."""
    os.environ[OPTIONS] = "1"
    found, notes = build_environment(arguments, os.environ)
    for name in os.environ.keys() - found.keys():  # removed
        del os.environ[name]
    os.environ.update(found)
    return notes


def _run(config: Config, stop: Stop, notes: list[str]) -> int:
    pods = preflight.read_pods(os.environ)
    folder = RunDirectory(config.results, config.comparison, config.run)
    ledger = Ledger(folder, read_pod_name(os.environ))
    refuse_finished(config, folder, os.environ)
    launcher = uuid.uuid4().hex
    lease = Lease(folder, launcher, ledger.pod)
    is_first = holds_rank_0(os.environ, ledger.pod, pods.nodes)
    if is_first:
        lease.check()
    try:
        accelerators.check(config.accelerator, pods.processes_per_node, os.environ)
        if checked := preflight.check(config, pods.world_size, os.environ):
            check_memory(config, pods, checked.device_bytes, checked.choice)
    except (AcceleratorsMissing, OutOfMemory) as missing:
        ledger.record_refusal(failures.exit_code(missing), spell(str(missing), os.environ))
        raise
    ledger.check(config)
    for note in notes:  # of a run that can start
        log.info(note)
    if is_first:
        lease.take()
    sender = Sender(folder, launcher, os.environ) if os.environ.get("MLFLOW_TRACKING_URI") else None
    events = EventWriter(folder, launcher) if config.tensorboard and config.mode == "train" else None
    met = partial(ledger.record_met, launcher)
    peers = Peers(folder, ledger.pod, pods.nodes, ledger.wait_left(config), met)
    limits = (pods.nodes, pods.processes_per_node, config.collective_timeout_s, config.flight_recorder)
    watchdog = Watchdog(folder, ledger.pod, read_node(os.environ), *limits)
    watchdog.set_environment(os.environ)
    memory, started = ContainerMemory(), time.time()
    deadline = _Deadline(lambda: ledger.seconds_left(config))
    try:
        ledger.record_start(launcher)
        stop.watch(
            config.grace_s, partial(ledger.record_end, launcher, failures.TERMINATED), failures.TERMINATED
        )
        for thread in filter(None, (sender, events, peers, watchdog)):
            thread.start()
        code, text = Ladder(config, folder, pods, os.environ, checked.plan if checked else None).climb(
            lambda: _launch(config, pods, launcher, peers, stop),
            lambda code: _record_attempt_end(folder, launcher, code, failures.reason(code)),
        )
    except LauncherStopped:
        code, text = failures.TERMINATED, stop.asked_by
    except PeerLost as failure:
        code, text = failures.PEER_LOST, str(failure)
    finally:
        stop.settle()  # the rest takes seconds, and must not undo the outcome
    deadline.cancel()
    end_ranks(min(5.0, stop.seconds_left(config.grace_s)))
    if code == failures.TERMINATED and config.mode == "train" and folder.summary.exists():
        code, text = failures.DONE, failures.reason(failures.DONE)  # it had finished before it heard of it
    if peers.ident is not None:
        peers.stop()
    if watchdog.ident is not None:
        watchdog.stop()
    lost = code == failures.PEER_LOST or (watchdog.ended and code == KILLED)
    if watchdog.verdict and lost:
        code, text = failures.PEER_LOST, watchdog.verdict.sentence
    if code == KILLED:
        planted = explain_planted_kill(folder.faults, started) if config.fault else ""
        text = f"{text}; {planted or memory.explain_kill() or UNEXPLAINED_KILL}"
    if peers.in_vain:
        code, text = failures.PEER_LOST, peers.in_vain
    elif code == failures.PEER_LOST and peers.met_at is None and ledger.wait_left(config) <= 0:
        code, text = failures.DEADLINE_PASSED, ledger.wait_sentence(config)
    if deadline.passed:
        code, text = failures.DEADLINE_PASSED, Ledger(folder, ledger.pod).deadline_sentence(config)
    text = spell(text, os.environ)
    write: Callable[[str, int, str], None]
    for write in (partial(_record_attempt_end, folder), ledger.record_end):
        try:
            write(launcher, code, text)
        except OSError as failure:  # a full volume must not change the exit code
            log.warning("the end is not written down: %s", failure)
    lease.release()
    if sender and sender.ident is not None:
        sender.finish(code, stop.seconds_left(config.grace_s) - LAST_TRY_MARGIN_S)
    if events and events.ident is not None:
        events.finish()
    if code == failures.PEER_LOST:
        leave_to_culprit(os.environ)
    return end(code, text)


class _Deadline:
    """Stop this process as Kubernetes would, by SIGTERM, unless cancelled before; `passed` separates the two.

    Args:
        seconds_left: called again when they are over: waiting for other pods has moved the deadline.
    """

    def __init__(self, seconds_left: Callable[[], float]) -> None:
        self.passed = False
        self._seconds_left = seconds_left
        self._arm(seconds_left())

    def _arm(self, seconds: float) -> None:
        self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._stop)
        self._timer.daemon = True
        self._timer.start()

    def _stop(self) -> None:
        if (left := self._seconds_left()) > 0:
            self._arm(left)
            return
        self.passed = True
        os.kill(os.getpid(), signal.SIGTERM)

    def cancel(self) -> None:
        self._timer.cancel()


def _launch(config: Config, pods: preflight.Pods, launcher: str, peers: Peers, stop: Stop) -> tuple[int, str]:
    """Run torch's elastic launcher in this process; (exit code, what happened)."""
    os.environ["STRATLAB_LAUNCHER"] = launcher
    peers.set_environment(os.environ)
    if "PET_RDZV_ENDPOINT" in os.environ and read_node_rank(os.environ, read_pod_name(os.environ)):
        wait_for_host(os.environ["PET_RDZV_ENDPOINT"], peers.wait_s)
    from torch.distributed import TCPStore
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    server = partial(TCPStore, is_master=True, multi_tenant=True, wait_for_workers=False)
    try:
        run_ranks(
            "trainer.worker",
            pods.processes_per_node,
            config.grace_s,
            stop,
            before=lambda: peers.keep_store(os.environ, server),
        )
    except ChildFailedError as failure:
        node = read_node_rank(os.environ, read_pod_name(os.environ))
        first = 0 if node is None else node * pods.processes_per_node
        ended = {r if node is None else first + f.local_rank: f for r, f in failure.failures.items()}
        rank, code = failures.first_failure({rank: end.exitcode for rank, end in ended.items()})
        return code, ": ".join([f"rank {rank}", failures.reason(code), *_read_sentence(ended[rank])])
    except SignalException as failure:
        if stop.asked_at is not None:
            return failures.TERMINATED, stop.asked_by
        return 128 + int(failure.sigval), f"stopped by signal {int(failure.sigval)}"
    except Exception as failure:
        if stop.asked_at is not None:  # torch may turn the interrupting exception into another one
            log.warning("torch's launcher, after a request to stop: %r", failure)
            return failures.TERMINATED, stop.asked_by
        code = failures.exit_code(failure)
        log.exception("the launcher failed")
        return code, f"launcher: {failures.reason(code)}: {failure}"
    return failures.DONE, failures.reason(failures.DONE)


def _read_sentence(end: ProcessFailure) -> list[str]:
    """Return the rank's own message about its end (`worker.main`): one line, without the name of the error."""
    message = end.error_file_data.get("message")
    text = str(message.get("message", "") if isinstance(message, dict) else message or "")
    lines = text.partition(": ")[2].splitlines()
    return [lines[0][:LONGEST_SENTENCE]] if lines else []


def _record_attempt_end(folder: RunDirectory, launcher: str, code: int, text: str) -> None:
    """Close the attempt that rank 0 opened, if rank 0 was a child of this process."""
    started = [line for line in folder.read_attempts() if line["event"] == "started"]
    if started and started[-1]["launcher"] == launcher:
        folder.append_attempt("ended", started[-1]["attempt"], launcher, **describe_end(code, text))


if __name__ == "__main__":
    with packages_needed():
        try:
            code = main(sys.argv[1:])
        finally:
            ignore_further()
        drop_unwritten()
        sys.exit(code)

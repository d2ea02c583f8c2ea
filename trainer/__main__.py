"""The pod's entry point: `python -m trainer`.

Checks what can be checked before torch is imported, starts torch's elastic launcher on `trainer.worker`, and passes
the first failing rank's exit code on. torchrun itself always ends with 1, and then the operator could not tell a
wrong setting from a lost peer. While the ranks work, this process replays their metrics to MLflow.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import uuid
from pathlib import Path
from typing import Any

from trainer import failures, preflight
from trainer.config import Config, ConfigError
from trainer.failures import DataMissing
from trainer.run_directory import RunDirectory
from trainer.sender import Sender

TERMINATION_LOG = Path("/dev/termination-log")  # Kubernetes shows it in `kubectl describe pod`

HELP = """python -m trainer: one run, set by environment variables alone.

  TRAINER_RUN=try TRAINER_RESULTS=results TRAINER_STRATEGY=ddp PET_NPROC_PER_NODE=2 python -m trainer

Settings: python -m trainer.config --schema. Exit codes: 0 done, 2 bad configuration, 3 data or model missing,
10 accelerator out of memory, 12 loss not finite, 13 storage full, 134 a peer was lost, 128+n signal n."""


def main(arguments: list[str]) -> int:
    """Runs the pod's share of the run; returns its exit code."""
    if arguments:
        print(HELP)
        return failures.DONE if arguments[0] in ("-h", "--help") else failures.BAD_CONFIG
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        config = Config.from_env(os.environ)
        pods = preflight.read_pods(os.environ)
        preflight.check(config, pods.world_size, os.environ)
    except (ConfigError, DataMissing) as failure:
        return _end(failures.exit_code(failure), str(failure))

    launcher = uuid.uuid4().hex
    folder = RunDirectory(config.results, config.comparison, config.run)
    sender = Sender(folder, launcher, os.environ) if os.environ.get("MLFLOW_TRACKING_URI") else None
    if sender:
        sender.start()
    code, text = _launch(pods, launcher)
    _record_end(folder, launcher, code)
    if sender:
        sender.finish(code)
    return _end(code, text)


def _launch(pods: preflight.Pods, launcher: str) -> tuple[int, str]:
    """Runs torch's elastic launcher in this process; (exit code, what happened)."""
    os.environ["STRATLAB_LAUNCHER"] = launcher
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // pods.processes_per_node)))
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    options = ["-m", "trainer.worker"]
    if "PET_RDZV_ENDPOINT" not in os.environ and "PET_MASTER_ADDR" not in os.environ:
        options = ["--standalone", "--nproc-per-node", str(pods.processes_per_node), *options]
    try:
        run.run(run.parse_args(options))
    except ChildFailedError as failure:
        rank, code = first_failure({r: f.exitcode for r, f in failure.failures.items()})
        return code, f"rank {rank}: {failures.reason(code)}"
    except SignalException as failure:
        return 128 + int(failure.sigval), f"stopped by signal {int(failure.sigval)}"
    except Exception as failure:
        code = failures.exit_code(failure)
        logging.getLogger("trainer").exception("the launcher failed")
        return code, f"launcher: {failures.reason(code)}: {failure}"
    return failures.DONE, failures.reason(failures.DONE)


def first_failure(exit_codes: dict[int, int]) -> tuple[int, int]:
    """(rank, exit code) of the culprit: a rank that only lost its peer, or was told to stop, is a survivor.

    A negative code is a signal (multiprocessing's convention) and becomes 128 + n.
    """
    codes = {rank: code if code >= 0 else 128 - code for rank, code in exit_codes.items()}
    survivors = (failures.PEER_LOST, failures.TERMINATED)
    culprits = {rank: code for rank, code in codes.items() if code not in survivors} or codes
    rank = next(iter(culprits))
    return rank, culprits[rank]


def _record_end(folder: RunDirectory, launcher: str, code: int) -> None:
    """Closes the attempt that rank 0 opened, if rank 0 was a child of this process."""
    started = [line for line in folder.read_attempts() if line["event"] == "started"]
    if started and started[-1]["launcher"] == launcher:
        attempt = started[-1]["attempt"]
        folder.append_attempt("ended", attempt, launcher, exit_code=code, reason=failures.reason(code))


def _end(code: int, text: str) -> int:
    """Says why, for people and for Kubernetes."""
    if code != failures.DONE:
        print(f"{failures.reason(code)} (exit code {code}):\n{text}", file=sys.stderr, flush=True)
    if TERMINATION_LOG.exists():
        line: dict[str, Any] = {"exit_code": code, "reason": failures.reason(code), "message": text[:2000]}
        try:
            TERMINATION_LOG.write_text(json.dumps(line) + "\n")
        except OSError as failure:
            print(f"{TERMINATION_LOG}: {failure}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

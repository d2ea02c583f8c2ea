"""Pods of one run as processes of this machine, and a stand-in for the operator that replaces those that may go on.

A pod is `python -m trainer` with the variables that the operator injects; its end is the end of all that it has
started, as with a container (torch's launcher gives each rank a session of its own, so a process group would not do).
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from stratlab.processes import free_port
from stratlab_spec.run_directory import RunDirectory, read_lines
from trainer.checkpoint.folder import CheckpointFolder

SMALL = {
    "TRAINER_RUN": "try", "TRAINER_STRATEGY": "ddp", "TRAINER_MODEL": "cnn", "TRAINER_IMAGE_SIZE": "8",
    "TRAINER_GLOBAL_BATCH_SIZE": "16", "TRAINER_MICRO_BATCH_SIZE": "8", "TRAINER_LOG_EVERY": "1",
    "TRAINER_PROFILE_STEPS": "0", "TRAINER_CHECKPOINT_EVERY": "20", "TRAINER_EVALUATE_EVERY": "100000",
}  # fmt: skip
START_S = 180.0


class Pods:
    """All pods of one run; the operator's stand-in obeys `restartPolicy: ExitCode`.

    Args:
        results: the volume.
        count: pods of one process each; with 1, `processes` in it.
        settings: of the run, over SMALL.
        prefix: words before each pod's command (`ip netns exec ...`).
        host: under which pods find the first one.
        python: that starts each pod; one of tests/programs.py has its imports behind it.
        logs: where what the pods print goes; the volume by default.
    """

    def __init__(
        self,
        results: Path,
        count: int = 2,
        processes: int = 1,
        settings: Mapping[str, str] | None = None,
        prefix: Callable[[int], tuple[str, ...]] = lambda index: (),
        host: str = "127.0.0.1",
        logs: Path | None = None,
        python: str = sys.executable,
    ) -> None:
        self.folder = RunDirectory(results, "default", "try")
        self.codes: list[tuple[int, int]] = []
        """(pod, exit code) of every end so far."""
        self._results = results
        self._processes = processes
        self._settings = SMALL | dict(settings or {})
        self._prefix = prefix
        self._python = python
        self._host = host
        self._port = free_port()
        self._pods: list[subprocess.Popen[bytes] | None] = [None] * count
        self._logs = [(logs or results) / f"pod-{index}.log" for index in range(count)]

    def start(self, index: int | None = None) -> None:
        for each in range(len(self._pods)) if index is None else (index,):
            with open(self._logs[each], "ab") as log:
                self._pods[each] = subprocess.Popen(
                    [*self._prefix(each), self._python, "-m", "trainer"],
                    env=self._environment(each), stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip

    def kill(self, index: int) -> None:
        kill_tree(self._pod(index))

    def send(self, index: int, number: int) -> None:
        """A signal to a pod's first process, where it has not ended."""
        self._pod(index).send_signal(number)

    def wait_for_end(self, index: int, limit_s: float) -> int:
        """The exit code of a pod that is about to end."""
        try:
            return self._pod(index).wait(limit_s)
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"pod {index} has not ended\n{self.said()}") from late

    def _pod(self, index: int) -> subprocess.Popen[bytes]:
        pod = self._pods[index]
        assert pod is not None
        return pod

    def pids_of_ranks(self, index: int) -> list[int]:
        below = psutil.Process(self._pod(index).pid).children(recursive=True)
        return sorted(process.pid for process in below if "trainer.worker" in process.cmdline())

    def finish(self, again_after_s: float = 0.0, limit_s: float = 300.0, starts: int = 6) -> int:
        """Replaces pods that ended with a code from 128, until the first one is done or one has ended for good.

        Returns:
            The code that the run ended with.
        """
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            for index, pod in enumerate(self._pods):
                if pod is None or pod.poll() is None:
                    continue
                code = pod.returncode if pod.returncode >= 0 else 128 - pod.returncode
                self.codes.append((index, code))
                self._pods[index] = None
                if code < 128 and (code or index == 0):
                    return code
                if code >= 128:
                    assert len(self.codes) < starts * len(self._pods), (
                        f"never ends: {self.codes}\n{self.said()}"
                    )
                    time.sleep(again_after_s)
                    self.start(index)
            time.sleep(0.1)
        raise AssertionError(f"not over after {limit_s} s, ends so far: {self.codes}\n{self.said()}")

    def wait_for(self, condition: Callable[[], bool], text: str) -> None:
        """Until it holds; fails with `text` and what the pods have said."""
        deadline = time.monotonic() + START_S
        while not condition():
            assert time.monotonic() < deadline, f"{text}\n{self.said()}"
            time.sleep(0.05)

    def wait_for_step(self, step: int, attempt: int = 1) -> None:
        """Until metrics.jsonl holds this step, made by this attempt or a later one."""

        def is_there() -> bool:
            return any(line["step"] >= step and line["attempt"] >= attempt for line in self.trained())

        self.wait_for(is_there, f"step {step} of attempt {attempt} never came")

    def lines(self) -> list[dict[str, Any]]:
        return read_lines(self.folder.metrics)

    def trained(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["kind"] == "train"]

    def attempts(self) -> list[dict[str, Any]]:
        return read_lines(self.folder.path / "attempts.jsonl")

    def starts(self) -> list[int]:
        """Of each attempt the step behind which it began."""
        return [line["from_step"] for line in self.attempts() if line["event"] == "started"]

    def ledgers(self) -> list[list[dict[str, Any]]]:
        return [read_lines(path) for path in sorted((self.folder.path / "pods").glob("*.jsonl"))]

    def committed(self) -> list[int]:
        return CheckpointFolder(self.folder).committed()

    def losses(self) -> dict[int, float]:
        """Step -> loss of the last attempt that made it."""
        return {line["step"]: line["loss"] for line in self.trained()}

    def steps_again(self) -> int:
        return len(self.trained()) - len(self.losses())

    def recovery_s(self, fault_t: float) -> float:
        """From `fault_t` (since 1970) to the first step of a later attempt."""
        made = [line for line in self.lines() if line["t"] > fault_t - 600]
        first = min(line["attempt"] for line in made)
        later = [line["t"] for line in self.trained() if line["t"] > fault_t and line["attempt"] > first]
        assert later, f"no attempt made a step after the fault\n{self.said()}"
        return min(later) - fault_t

    def said(self) -> str:
        there = [log for log in self._logs if log.exists()]
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-3000:]}" for log in there)

    def close(self) -> None:
        for pod in self._pods:
            if pod is not None and pod.poll() is None:
                kill_tree(pod)

    def _environment(self, index: int) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        of_pod = {"PET_NPROC_PER_NODE": str(self._processes), "HOSTNAME": f"try-worker-{index}"}
        if len(self._pods) > 1:
            of_pod |= {
                "PET_NNODES": f"{len(self._pods)}:{len(self._pods)}",
                "PET_RDZV_BACKEND": "c10d",
                "PET_RDZV_ENDPOINT": f"{self._host}:{self._port}",
                "PET_RDZV_ID": "try",
                "PET_MAX_RESTARTS": "0",
                # torch would not know an address of a namespace for its own
                "PET_RDZV_CONF": f"read_timeout=15,is_host={'false' if index else 'true'}",
            }
        fixed = {"TRAINER_RESULTS": str(self._results), "OMP_NUM_THREADS": "1"}
        return kept | fixed | of_pod | self._settings


@contextmanager
def open_pods(results: Path, *given: Any, **named: Any) -> Iterator[Pods]:
    pods = Pods(results, *given, **named)
    try:
        yield pods
    finally:
        pods.close()


def train_undisturbed(results: Path, *given: Any, **named: Any) -> dict[int, float]:
    """The losses of the same run that nothing happens to."""
    results.mkdir(exist_ok=True)
    with open_pods(results, *given, **named) as pods:
        pods.start()
        assert pods.finish() == 0, pods.said()
        return pods.losses()


def kill_tree(pod: subprocess.Popen[bytes]) -> None:
    with suppress(psutil.NoSuchProcess):
        for process in [*psutil.Process(pod.pid).children(recursive=True), psutil.Process(pod.pid)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    pod.wait(30)

"""`stratlab wait` called in a thread, and as the command that a pod starts."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from stratlab import cli
from stratlab.cluster import connection as connecting
from stratlab.run_directory.outcome import Outcome
from stratlab.wait.ended import wait_for_run
from stratlab.wait.resource import Resource

QUIET_S = 0.6


def write_attempt(run_dir: Path, code: int | None) -> None:
    """An attempt that has started, and ended unless `code` is None."""
    lines = [{"attempt": 1, "event": "started", "launcher": "a"}]
    if code is not None:
        lines.append({"attempt": 1, "event": "ended", "exit_code": code, "launcher": "a"})
    run_dir.mkdir(exist_ok=True)
    (run_dir / "attempts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


class Waiting:
    """`wait_for_run` in a thread."""

    def __init__(self, run_dir: Path, resource: Resource, deadline_s: float = 20.0) -> None:
        self.said: list[str] = []
        self.outcome: Outcome | None = None
        self.thread = threading.Thread(target=self._wait, args=(run_dir, resource, deadline_s), daemon=True)
        self.thread.start()

    def _wait(self, run_dir: Path, resource: Resource, deadline_s: float) -> None:
        resource.start()
        times = {"deadline_s": deadline_s, "poll_s": 0.05, "quiet_s": QUIET_S}
        self.outcome = wait_for_run(run_dir, resource=resource, say=self.said.append, **times)
        resource.stop()

    def ends_within(self, seconds: float) -> Outcome:
        self.thread.join(seconds)
        assert self.outcome, f"still waiting; said: {self.said}"
        return self.outcome

    def goes_on_for(self, seconds: float) -> None:
        self.thread.join(seconds)
        assert self.thread.is_alive(), f"ended: {self.outcome}; said: {self.said}"


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["stratlab", "wait", *map(str, arguments), "--poll-s", "0.05"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def enter_pod(monkeypatch: pytest.MonkeyPatch, folder: Path, server: str) -> None:
    """As the kubelet sets up a pod of the namespace `lab`; `folder` gets the token."""
    for name, text in (("token", "secret\n"), ("namespace", "lab")):
        (folder / name).write_text(text)
    split = urlsplit(server)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(split.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(split.port))
    monkeypatch.setattr(connecting, "SERVICE_ACCOUNT", folder)

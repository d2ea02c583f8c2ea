"""`stratlab wait` as the command that a pod starts."""

import json
import sys
from urllib.parse import urlsplit

import pytest

from stratlab import cli
from stratlab.cluster import connection as connecting


def write_attempt(run_dir, code):
    """An attempt that has started, and ended unless `code` is None."""
    lines = [{"attempt": 1, "event": "started", "launcher": "a"}]
    if code is not None:
        lines.append({"attempt": 1, "event": "ended", "exit_code": code, "launcher": "a"})
    run_dir.mkdir(exist_ok=True)
    (run_dir / "attempts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["stratlab", "wait", *map(str, arguments), "--poll-s", "0.05"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def enter_pod(monkeypatch, folder, server):
    """As the kubelet sets up a pod of the namespace `lab`; `folder` gets the token."""
    for name, text in (("token", "secret\n"), ("namespace", "lab")):
        (folder / name).write_text(text)
    split = urlsplit(server)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(split.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(split.port))
    monkeypatch.setattr(connecting, "SERVICE_ACCOUNT", folder)

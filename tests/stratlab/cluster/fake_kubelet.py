"""A stand-in for scheduler and kubelet behind the fake API: pods that are created run their command as a process here.

Mount the volume at a folder of this machine, and the real scripts do their real work.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stratlab.cluster.connection import Connection
from tests.stratlab.cluster import fake_api
from tests.stratlab.cluster.fake_api import FakeApi, Handler, connect_to, serve

PODS = "/api/v1/namespaces/lab/pods"
CLAIMS = "/api/v1/namespaces/lab/persistentvolumeclaims"


class Kubelet:
    """`created` are the pods as they were asked for; `waits` what a pod waits for instead of running, by image."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.created: list[dict[str, Any]] = []
        self.waits: dict[str, dict[str, Any]] = {}
        self.env: dict[str, str] = {}
        self.deny: tuple[int, str] | None = None

    def create(self, pod: dict[str, Any]) -> dict[str, Any]:
        self.created.append(copy.deepcopy(pod))
        pod["metadata"]["name"] = pod["metadata"].pop("generateName") + uuid.uuid4().hex[:5]
        stored = self.api.put(PODS, pod | {"status": {"phase": "Pending"}})
        threading.Thread(target=self._run, args=(copy.deepcopy(stored),), daemon=True).start()
        return stored

    def _run(self, pod: dict[str, Any]) -> None:
        (container,) = pod["spec"]["containers"]
        if status := self.waits.get(container["image"]):
            self._put(pod, status)
            return
        pod["spec"]["nodeName"] = "node-1"
        self.api.logs[(pod["metadata"]["name"], "")] = []
        self._put(pod, {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]})
        command = [part.replace("$$", "$") for part in container["command"]]
        command[0] = sys.executable
        env = {each["name"]: each.get("value", "node-1").replace("$$", "$") for each in container["env"]} | {
            "HOME": os.environ["HOME"]
        }
        env |= {"PATH": os.environ["PATH"]} | self.env
        name = pod["metadata"]["name"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, text=True
        )
        last: list[str] = []
        assert process.stdout
        for line in process.stdout:
            self.api.log(name, line.rstrip("\n"), "")
            last = [*last, line][-20:]
        code = process.wait()
        ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": "".join(last)}
        if code == 0:
            ended.pop("message")
        phase = "Failed" if code else "Succeeded"
        self._put(pod, {"phase": phase, "containerStatuses": [{"state": {"terminated": ended}}]})

    def _put(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        if pod["metadata"]["name"] in self.api.collections[PODS]:  # it may have been deleted
            self.api.put(PODS, pod | {"status": status})


@contextmanager
def run_kubelet(api: FakeApi) -> Iterator[tuple[Connection, Kubelet]]:
    """A connection to a fake cluster with a namespace `lab`, a claim `stratlab-results`, and pods that run."""
    kubelet = Kubelet(api)

    class PodHandler(Handler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if kubelet.deny:
                self._answer(*kubelet.deny)
            elif self.path == PODS:
                self._json(201, kubelet.create(body))
            else:
                self._answer(404, f"no {self.path} here")

        def do_DELETE(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(length)
            collection, _, name = self.path.rpartition("/")
            if name not in self.api.collections.get(collection, {}):
                self._answer(404, f'"{name}" not found')
                return
            self.api.delete(collection, name)
            self._json(200, {"kind": "Status", "status": "Success"})

    api.served.add(PODS)
    api.put(CLAIMS, {"metadata": {"name": "stratlab-results"}, "spec": {"accessModes": ["ReadWriteMany"]}})
    before = fake_api.Handler
    fake_api.Handler = PodHandler  # type: ignore[misc]
    try:
        with serve(api) as address:
            yield connect_to(address), kubelet
    finally:
        fake_api.Handler = before  # type: ignore[misc]

"""A stand-in for scheduler and kubelet behind the fake API: pods that are created run their command as a process here.

Mount the volume at a folder of this machine, and the real scripts do their real work.
"""

import copy
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager

from tests.stratlab.cluster import fake_api
from tests.stratlab.cluster.fake_api import Handler, connect_to, serve

PODS = "/api/v1/namespaces/lab/pods"
JOBS = "/apis/kubeflow.org/v1/namespaces/lab/pytorchjobs"
CLAIMS = "/api/v1/namespaces/lab/persistentvolumeclaims"


class Kubelet:
    """`created` are the pods as they were asked for; `waits` what a pod waits for instead of running, by image."""

    def __init__(self, api):
        self.api = api
        self.created = []
        self.waits = {}
        self.env = {}
        self.deny = None
        self.operates = True

    def create_job(self, job):
        """In place of the training operator too, unless it does not operate: a job of one master."""
        stored = self.api.put(JOBS, job)
        if self.operates:
            threading.Thread(target=self._operate, args=(copy.deepcopy(stored),), daemon=True).start()
        return stored

    def _operate(self, job):
        name, (replica,) = job["metadata"]["name"], job["spec"]["pytorchReplicaSpecs"].values()
        template = copy.deepcopy(replica["template"])
        of_job = {"job-name": name, "job-role": "master", "replica-type": "master", "replica-index": "0"}
        told = {f"training.kubeflow.org/{key}": text for key, text in of_job.items()}
        template["metadata"]["labels"] |= told
        template["metadata"]["name"] = f"{name}-master-0"
        given = [{"name": "PET_NNODES", "value": "1"}, {"name": "MASTER_ADDR", "value": "localhost"}]
        template["spec"]["containers"][0]["env"] += given
        self._condition(job, "Created")
        self.create(template)
        over, pods = ("Succeeded", "Failed"), self.api.collections[PODS]
        while (pod := pods.get(f"{name}-master-0")) and pod["status"]["phase"] not in over:
            time.sleep(0.02)
        if pod:
            self._condition(job, "Created", pod["status"]["phase"])

    def _condition(self, job, *kinds):
        stamp = {"lastTransitionTime": "2026-11-21T09:00:00Z", "reason": "fake", "message": "as told"}
        if job["metadata"]["name"] in self.api.collections[JOBS]:
            listed = [{"type": kind, "status": "True", **stamp} for kind in kinds]
            self.api.put(JOBS, job | {"status": {"conditions": listed}})

    def create(self, pod):
        self.created.append(copy.deepcopy(pod))
        if prefix := pod["metadata"].pop("generateName", ""):
            pod["metadata"]["name"] = prefix + uuid.uuid4().hex[:5]
        stored = self.api.put(PODS, pod | {"status": {"phase": "Pending"}})
        threading.Thread(target=self._run, args=(copy.deepcopy(stored),), daemon=True).start()
        return stored

    def _run(self, pod):
        (container,) = pod["spec"]["containers"]
        known = {"name": container["name"], "image": container["image"], "imageID": "", "ready": True}
        known["restartCount"] = 0
        log = "pytorch" if container["name"] == "pytorch" else ""  # ours are asked for without a container
        if status := self.waits.get(container["image"]):
            self._put(pod, status)
            return
        pod["spec"]["nodeName"] = "node-1"
        self.api.logs[(pod["metadata"]["name"], log)] = []
        self._put(pod, {"phase": "Running", "containerStatuses": [known | {"state": {"running": {}}}]})
        command = [sys.executable, *(part.replace("$$", "$") for part in container["command"][1:])]
        env = {each["name"]: each.get("value", "node-1").replace("$$", "$") for each in container["env"]}
        env |= {name: os.environ[name] for name in ("HOME", "PATH")} | self.env
        name, last, both = (
            pod["metadata"]["name"],
            [],
            {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},
        )
        process = subprocess.Popen(command, env=env, text=True, **both)
        for line in process.stdout:
            self.api.log(name, line.rstrip("\n"), log)
            last = [*last, line][-20:]
        code = process.wait()
        phase, ended = "Succeeded", {"exitCode": code, "reason": "Completed"}
        if code:
            phase, ended = "Failed", {"exitCode": code, "reason": "Error", "message": "".join(last)}
        self._put(pod, {"phase": phase, "containerStatuses": [known | {"state": {"terminated": ended}}]})

    def _put(self, pod, status):
        if pod["metadata"]["name"] in self.api.collections[PODS]:  # it may have been deleted
            self.api.put(PODS, pod | {"status": status})


@contextmanager
def run_kubelet(api):
    """A connection to a fake cluster with a namespace `lab`, a claim `stratlab-results`, and pods that run."""
    kubelet = Kubelet(api)

    class PodHandler(Handler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if kubelet.deny:
                self._answer(*kubelet.deny)
            elif self.path == PODS:
                self._json(201, kubelet.create(body))
            elif self.path == JOBS:
                self._json(201, kubelet.create_job(body))
            else:
                self._answer(404, f"no {self.path} here")

        def do_DELETE(self):
            length = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(length)
            collection, _, name = self.path.rpartition("/")
            if name not in self.api.collections.get(collection, {}):
                return self._answer(404, f'"{name}" not found')
            self.api.delete(collection, name)
            self._json(200, {"kind": "Status", "status": "Success"})

    api.served.add(PODS)
    api.put(CLAIMS, {"metadata": {"name": "stratlab-results"}, "spec": {"accessModes": ["ReadWriteMany"]}})
    before = fake_api.Handler
    fake_api.Handler = PodHandler
    try:
        with serve(api) as address:
            yield connect_to(address), kubelet
    finally:
        fake_api.Handler = before

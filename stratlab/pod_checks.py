"""Check, in pods, that the images start, the volume is shared and writable, and MLflow answers by its name.

The pods of `stratlab check` run at the same time, because two of them must, and because each needs seconds. They run
plain Python, so that older images work too, and print their facts last.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.pod_phase import PodRefused
from stratlab.cluster.pod_template import GPU, PodRequest
from stratlab.cluster.volume_pod import Finished, run_on_volume
from stratlab.machine import explain_untrusted
from stratlab.namespace_checks import offers_gpus, say_refused
from stratlab.tracking import describe_redirect
from stratlab_spec.exit_codes import ACCELERATORS_MISSING
from stratlab_spec.findings import Finding

PLENTY_S = 90  # a network file system may show a new file late

# argv: writer|reader, a folder on the volume that only this check uses. Each waits for the other's file.
SHARE = f"""
import json, os, shutil, sys, time
role, folder = sys.argv[1:]
mine, theirs = os.path.join(folder, role), os.path.join(folder, {{"writer": "reader", "reader": "writer"}}[role])
began = time.monotonic()
facts = {{"node": os.environ["NODE_NAME"], "user": os.getuid(), "seen_after_s": None}}
def wait_for(path):
    while not os.path.exists(path):
        if time.monotonic() - began > {PLENTY_S}:
            return False
        os.listdir(os.path.dirname(os.path.dirname(path)))
        time.sleep(0.2)
    return True
try:
    if role == "writer":
        os.makedirs(folder)
        with open(mine, "w") as file:
            file.write(folder)
        wait_for(theirs)
        shutil.rmtree(folder)
    elif wait_for(theirs):
        seen = time.monotonic()
        with open(theirs) as file:
            facts["read"] = file.read() == folder
        with open(mine, "w") as file:
            file.write("seen")
        facts["seen_after_s"] = seen - began
    root = os.statvfs(os.path.dirname(folder))
    facts["free_bytes"] = root.f_bavail * root.f_frsize
    shm = os.statvfs("/dev/shm")
    facts["shm_bytes"] = shm.f_blocks * shm.f_frsize
except OSError as failure:
    facts["error"] = str(failure)
print("facts", json.dumps(facts))
"""

# argv: the tracking URI. Uses an API call: /health answers 200 even if every call with this Host header is refused.
# Redirects are not followed, as in the trainer; `location` is their target.
CALL_MLFLOW = """
import json, os, ssl, sys, urllib.error, urllib.parse, urllib.request
context = ssl.create_default_context()
if os.path.isfile(os.environ.get("STRATLAB_CA_FILE", "")):
    context.load_verify_locations(os.environ["STRATLAB_CA_FILE"])
class NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *redirect):
        return None
facts = {"status": None, "text": "", "location": None}
url = sys.argv[1].rstrip("/") + "/api/2.0/mlflow/experiments/search"
opener = urllib.request.build_opener(NoRedirects, urllib.request.HTTPSHandler(context=context))
request = urllib.request.Request(url, b'{"max_results": 1}', {"Content-Type": "application/json"})
try:
    with opener.open(request, timeout=20) as answer:
        facts["status"], facts["text"] = answer.status, answer.read(300).decode(errors="replace")
except urllib.error.HTTPError as failure:
    facts["status"], facts["text"] = failure.code, failure.read(300).decode(errors="replace")
    if 300 <= failure.code < 400 and failure.headers.get("Location"):
        facts["location"] = urllib.parse.urljoin(url, failure.headers["Location"])
except (OSError, ValueError) as failure:
    facts["text"] = str(failure)
print("facts", json.dumps(facts))
"""


MIB, GIB = 2**20, 2**30
LEAST_FREE_GIB = 1.0


@dataclass(frozen=True)
class PodsRequest:
    """Hold the pods' images and settings, as in the charts' values. `tracking_uri` "" = MLflow is not checked."""

    lab: PodRequest
    trainer_image: str
    tracking_uri: str


def check_pods(
    connection: Connection, request: PodsRequest, progress: Callable[[str], None]
) -> Iterator[Finding]:
    """Start the pods at once and yield their findings, volume first."""

    def start(pod: PodRequest, *command: str) -> Finished | ClusterError:
        try:
            return run_on_volume(connection, pod, ["python", *command], progress)
        except ClusterError as failure:
            return failure

    volume = replace(request.lab, read_only=False, deadline_s=PLENTY_S + 60)
    trainer_pod = replace(volume, claim=None, image=request.trainer_image)
    mlflow_pod = replace(volume, claim=None, component="test")
    folder = request.lab.find_folder(f".stratlab-check-{uuid.uuid4().hex[:8]}")
    looks_at_gpu = offers_gpus(connection)
    with ThreadPoolExecutor(5) as pool:
        shared = [pool.submit(start, volume, "-c", SHARE, role, folder) for role in ("writer", "reader")]
        trainer = pool.submit(start, trainer_pod, "-c", "import sys; sys.exit(0)")
        mlflow = pool.submit(start, mlflow_pod, "-c", CALL_MLFLOW, request.tracking_uri)
        if looks_at_gpu:  # with the same code that refuses a run
            look = ("-m", "trainer.program", "accelerators", GPU, "1")
            gpu = pool.submit(start, replace(trainer_pod, limits={GPU: 1}), *look)
        yield from judge_sharing(request, *(future.result() for future in shared))
        yield judge_image("image of the trainer", request.trainer_image, trainer.result())
        if looks_at_gpu:
            yield judge_gpu(gpu.result())
        if request.tracking_uri:
            yield judge_mlflow(request.tracking_uri, mlflow.result())
        else:
            yield Finding("ok", "MLflow", "not configured, metrics stay on the volume")


def judge_sharing(
    request: PodsRequest, writer: Finished | ClusterError, reader: Finished | ClusterError
) -> Iterator[Finding]:
    """Judge the image of the two pods, the volume, and /dev/shm."""
    yield judge_image("image of the lab", request.lab.image, writer)
    subject = f"volume {request.lab.claim}"
    wrote, read = facts_of(writer), facts_of(reader)
    for result, facts in ((writer, wrote), (reader, read)):
        if isinstance(result, PodRefused):
            yield say_refused(subject, result)
            return
        if isinstance(result, ClusterError) and result.status == 403:
            yield Finding("warning", subject, f"not checked: {result}")
            return
        if facts is None:
            reason = str(result) if isinstance(result, ClusterError) else result.termination
            seen = f"a pod that mounts it did not run: {reason} [SL-volume-pod-not-run]"
            yield Finding("problem", subject, seen)
            return
    assert wrote and read
    if error := wrote.get("error") or read.get("error"):
        fix = f"the volume must be writable for user {wrote['user']} (fsGroup {wrote['user']}, or its owner)"
        yield Finding("problem", subject, f"cannot be written: {error} [SL-volume-not-writable]", fix)
        return
    is_same = wrote["node"] == read["node"]
    nodes = f"both on {read['node']}" if is_same else f"on {wrote['node']} and {read['node']}"
    if not read.get("read"):
        seen = f"a file of one pod was not visible in another ({nodes}) within {PLENTY_S} s [SL-volume-not-shared]"
        fix = "use a StorageClass whose ReadWriteMany volumes are really shared"
        yield Finding("problem", subject, seen, fix)
        return
    free_gib = read["free_bytes"] / GIB
    text = (
        f"written by user {wrote['user']} in one pod and read in another ({nodes}), {free_gib:.1f} GiB free"
    )
    if free_gib < LEAST_FREE_GIB:
        text += " [SL-volume-nearly-full]"
        yield Finding("warning", subject, text, "traces and metrics need space: remove old comparisons")
    else:
        yield Finding("ok", subject, text)
    text = f"{read['shm_bytes'] / MIB:.0f} MiB in a plain pod; the charts mount run.sharedMemory.sizeLimit instead"
    yield Finding("ok", "shared memory", text)


def judge_image(subject: str, image: str, result: Finished | ClusterError) -> Finding:
    """Judge whether a container of the image started; a pod rejected for another reason does not count."""
    if isinstance(result, Finished):
        if result.exit_code != 128:
            return Finding("ok", subject, f"{image} starts")
        seen = f"{image}: {result.termination} [SL-image-no-python]"
        return Finding("problem", subject, seen, "it must contain python; build it with `make images`")
    if isinstance(result, PodRefused):
        return say_refused(subject, result)
    text = str(result)
    if "cannot start: " in text and "persistentvolumeclaim" not in text:
        fix = "load or push it, `make images` builds it; with an imagePullSecret in the namespace's ServiceAccount"
        return Finding("problem", subject, text, fix)
    fix = "the Role stratlab-user allows it" if result.status == 403 else ""
    return Finding("warning", subject, f"not checked: {text}", fix)


def judge_gpu(result: Finished | ClusterError) -> Finding:
    """Judge whether a pod of the trainer's image that requests a GPU can use it."""
    subject = "a GPU in a pod"
    if isinstance(result, PodRefused):
        return say_refused(subject, result)
    if isinstance(result, ClusterError):
        is_image = "cannot start: " in str(result)
        fix = "first its image, see above" if is_image else "all may be in use: check again later"
        return Finding("warning", subject, f"not checked: {result}", fix)
    said = result.text
    if result.exit_code == 0:
        return Finding("ok", subject, "the trainer's image can use the GPU that it requested")
    if result.exit_code == ACCELERATORS_MISSING:
        fix = f"until then every run on GPUs ends with exit code {ACCELERATORS_MISSING}"
        return Finding("problem", subject, f"{said} [SL-gpu-unusable]", fix)
    return Finding("warning", subject, f"not checked: {said[-300:] or result.termination}")


def judge_mlflow(uri: str, result: Finished | ClusterError) -> Finding:
    """Judge the answer to an API call inside the cluster."""
    if isinstance(result, PodRefused):
        return say_refused("MLflow", result)
    facts = facts_of(result)
    if facts is None:
        why = result if isinstance(result, ClusterError) else "no answer"
        return Finding("warning", "MLflow", f"not checked: {why}")
    status, text = facts["status"], facts["text"]
    if status == 200:
        return Finding("ok", "MLflow", f"{uri} answers an API call from inside the cluster")
    if status == 403 and "Host header" in text:
        fix = "add this name to MLFLOW_SERVER_ALLOWED_HOSTS of the server; /health does not show it"
        seen = f"{uri} refuses its own name: {text.strip()} [SL-check-mlflow-host]"
        return Finding("problem", "MLflow", seen, fix)
    if location := facts.get("location"):
        found, _, fix = describe_redirect(location).partition(": ")
        seen = f"{uri} answers {status}, {found} [SL-check-mlflow-redirect]"
        return Finding("problem", "MLflow", seen, fix)
    if status in (401, 403):
        seen = f"{uri} requires credentials ({status}) [SL-check-mlflow-credentials]"
        return Finding("warning", "MLflow", seen, "pass them to the runs as a Secret")
    if status is None and explain_untrusted(text):
        fix = "set the authority: --certificates configMap/NAME/ca.crt here, run.certificates of every run"
        seen = f"{uri}: its certificate is not trusted: {text} [SL-check-mlflow-untrusted]"
        return Finding("problem", "MLflow", seen, fix)
    if status is None:
        fix = "kubectl apply -k manifests/overlays/cluster, or --set run.mlflow.trackingUri="
        seen = f"{uri} is unreachable from a pod: {text} [SL-check-mlflow-unreachable]"
        return Finding("problem", "MLflow", seen, fix)
    seen = f"{uri} answers {status}: {text.strip()[:200]} [SL-check-mlflow-answer]"
    return Finding("problem", "MLflow", seen, "check that it is an MLflow server")


def facts_of(result: Finished | ClusterError) -> dict[str, Any] | None:
    """Return the facts that the pod's script printed last; None = it did not reach its end."""
    if isinstance(result, ClusterError):
        return None
    for line in reversed(result.text.splitlines()):
        if line.startswith("facts "):
            return dict(json.loads(line.removeprefix("facts ")))
    return None

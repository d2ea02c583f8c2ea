"""Charts as packages: complete, of the one version, rendering what their folders render, and pushed where told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from charts import packages
from charts.packages import main, package_charts
from stratlab.helm import find_helm
from stratlab.user_error import UserError
from tests.charts.rendering import CHARTS, HELMS, find_program, render
from tests.codes import find_codes


@pytest.fixture
def charts(tmp_path: Path) -> Path:
    """The library, and two charts that link to it."""
    for name in ("run", "ddp", "llm-3d"):
        shutil.copytree(CHARTS / name, tmp_path / "charts" / name, symlinks=True)
    return tmp_path / "charts"


def test_a_package_renders_what_its_folder_renders(charts: Path, tmp_path: Path) -> None:
    made = package_charts(find_helm(), charts, "7.8.9", tmp_path / "out")
    assert [path.name for path in made] == ["ddp-7.8.9.tgz", "llm-3d-7.8.9.tgz"]
    shutil.rmtree(charts)
    for program in map(find_program, HELMS):
        assert render(program, made[0]) == render(program, CHARTS / "ddp")


def test_what_helm_refuses_is_said(charts: Path, tmp_path: Path) -> None:
    (charts / "ddp" / "Chart.yaml").write_text("name: ddp\n")
    with pytest.raises(UserError) as refused:
        package_charts(find_helm(), charts, "0.1.0", tmp_path / "out")
    assert find_codes(refused.value) == ["SL-helm-failed"] and "version" in str(refused.value)


def test_packages_are_pushed_by_helm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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

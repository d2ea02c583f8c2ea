"""Charts as packages: complete, of the one version, rendering what their folders render, and pushed where told."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from charts import packages
from charts.packages import main, package_charts
from stratlab.rendering.helm import find_helm
from stratlab.user_error import UserError
from tests.charts.oci_registry import run_registry
from tests.charts.rendering import CHARTS, HELMS, find_program, render
from tests.codes import find_codes


@pytest.fixture
def charts(tmp_path: Path) -> Path:
    """The library, and two charts that link to it."""
    for name in ("run", "ddp", "llm-3d"):
        shutil.copytree(CHARTS / name, tmp_path / "charts" / name, symlinks=True)
    return tmp_path / "charts"


def test_a_package_renders_what_its_folder_renders(charts: Path, tmp_path: Path) -> None:
    """Each helm, one that packs and one that renders."""
    made = package_charts(find_helm(), charts, "7.8.9", tmp_path / "out")
    assert [path.name for path in made] == ["ddp-7.8.9.tgz", "llm-3d-7.8.9.tgz"]
    shutil.rmtree(charts)
    for program in map(find_program, HELMS):
        for path, chart in zip(made, ("ddp", "llm-3d"), strict=True):
            assert render(program, path) == render(program, CHARTS / chart)
            shown = subprocess.run([program, "show", "chart", path], capture_output=True, text=True).stdout
            told = yaml.safe_load(shown)
            assert (told["version"], told["appVersion"]) == ("7.8.9", "7.8.9")


def test_what_helm_refuses_is_said(charts: Path, tmp_path: Path) -> None:
    (charts / "ddp" / "Chart.yaml").write_text("name: ddp\n")
    with pytest.raises(UserError) as refused:
        package_charts(find_helm(), charts, "0.1.0", tmp_path / "out")
    assert find_codes(refused.value) == ["SL-helm-failed"] and "version" in str(refused.value)


def test_pushed_packages_are_pulled_by_their_version(
    charts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "VERSION").write_text("1.2.3\n")
    monkeypatch.setattr(packages, "CHARTS", charts)
    monkeypatch.setenv("HELM_REGISTRY_CONFIG", str(tmp_path / "no-login.json"))
    with run_registry() as registry:
        place = f"oci://{registry.address}/team"
        assert main([str(tmp_path / "out"), "--push", f"{place}/", "--plain-http"]) == 0
        assert registry.tags() == ["team/ddp:1.2.3", "team/llm-3d:1.2.3"]
        for program in map(find_program, HELMS):
            pull = ["pull", f"{place}/ddp", "--version", "1.2.3", "--plain-http", "--destination"]
            (tmp_path / program.name).mkdir()
            subprocess.run([program, *pull, tmp_path / program.name], check=True, capture_output=True)
            pulled = tmp_path / program.name / "ddp-1.2.3.tgz"
            assert pulled.read_bytes() == (tmp_path / "out" / "ddp-1.2.3.tgz").read_bytes()
    assert main([str(tmp_path / "out"), "--push", place, "--plain-http"]) == 2
    assert find_codes(capsys.readouterr().err) == ["SL-helm-failed"]


def test_a_registry_has_its_scheme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--push", "registry.example/team"]) == 2
    assert find_codes(capsys.readouterr().err) == ["SL-registry-scheme"]
    assert list(tmp_path.iterdir()) == []

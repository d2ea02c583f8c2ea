"""A new strategy is one folder: the very checks that guard the shipped charts find it, and see when it is wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from charts import new_chart
from charts.new_chart import FIXED, LIBRARY, LIBRARY_TARGET
from stratlab_spec.settings.config import ConfigError
from tests.charts.contract import check_trainer_contract
from tests.charts.golden_file import read_goldens, render_all, write_goldens
from tests.charts.rendering import CHARTS, discover_charts, discover_other_charts, render
from tests.charts.rendering import LIBRARY as LIBRARY_CHART
from tests.codes import find_codes


@pytest.fixture
def charts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies, with their links, of the library and one shipped chart; and a new strategy, made as documented."""
    folder = tmp_path / "charts"
    for name in (LIBRARY_CHART, "ddp"):
        shutil.copytree(CHARTS / name, folder / name, symlinks=True)
    monkeypatch.setattr(new_chart, "CHARTS", folder)
    assert new_chart.main(["fsdp-2", "--strategy", "fsdp", "--describe", 'a: "b" # c']) == 0
    return folder


def test_it_is_found_and_passes_after_make_golden(helm: Path, charts: Path, tmp_path: Path) -> None:
    assert discover_charts(charts) == ["ddp", "fsdp-2"]
    check_trainer_contract(render(helm, charts / "fsdp-2"))
    write_goldens(charts, tmp_path / "golden")
    assert read_goldens(tmp_path / "golden").keys() == {"fsdp-2"}
    values = charts / "fsdp-2" / "values.yaml"
    values.write_text(f"{values.read_text()}    micro_batch_size: 8\n")
    assert render_all(charts) != read_goldens(tmp_path / "golden"), "a later change"
    values.write_text(f"{values.read_text()}    global_batch_size: 65\n")
    with pytest.raises(ConfigError):
        check_trainer_contract(render(helm, charts / "fsdp-2"))


@pytest.mark.parametrize("name", ["1d", "a/b", "z" * 41, "ddp"])
def test_a_name_that_cannot_be_one(charts: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(charts.rglob("*"))
    assert new_chart.main([name]) == 2
    assert find_codes(capsys.readouterr().err) == ["SL-chart-taken" if name == "ddp" else "SL-chart-name"]
    assert sorted(charts.rglob("*")) == before


def test_the_shipped_charts_have_the_same_pattern() -> None:
    """A copy of the library goes stale silently: Helm 3 prefers what `helm dependency update` leaves."""
    for folder in (CHARTS / name for name in discover_charts(CHARTS)):
        assert {path: (folder / path).read_text() for path in FIXED} == FIXED
        assert (folder / LIBRARY).readlink() == LIBRARY_TARGET
        files = {
            str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or path.is_file()
        }
        assert files == {"Chart.yaml", "values.yaml", str(LIBRARY), *FIXED}


def test_every_chart_is_of_the_one_version() -> None:
    version = (CHARTS.parent / "VERSION").read_text().strip()
    for chart in (*discover_charts(CHARTS), *discover_other_charts(), LIBRARY_CHART):
        told = yaml.safe_load((CHARTS / chart / "Chart.yaml").read_text())
        assert (told["name"], told["version"], told["appVersion"]) == (chart, version, version)
        assert told["kubeVersion"] == ">=1.29.0-0"  # what the objects are checked against; a vendor's suffix

"""A new strategy is one folder: the very checks that guard the shipped charts find it, and see when it is wrong."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from charts import new_chart
from charts.new_chart import FIXED, LIBRARY, LIBRARY_TARGET, build_chart
from tests.charts.contract import check_analysis_contract, check_trainer_contract
from tests.charts.golden_file import GOLDEN, check_golden, check_no_stale_goldens, write_goldens
from tests.charts.rendering import CHARTS, Document, discover_charts, helm_template, render
from tests.charts.rendering import LIBRARY as LIBRARY_CHART
from trainer.settings.config import ConfigError

SHIPPED = "ddp"
NAME = "ddp-bf16"
VALUES = """\
run:
  processesPerNode: 4
  config:
    strategy: ddp
    precision: bf16
    micro_batch_size: 16
"""


@pytest.fixture
def charts(tmp_path: Path) -> Path:
    """Copies, with their links, of the library and one shipped chart; and a new strategy, made as documented."""
    folder = tmp_path / "charts"
    for name in (LIBRARY_CHART, SHIPPED):
        shutil.copytree(CHARTS / name, folder / name, symlinks=True)
    build_chart(folder, NAME, description="ddp: in bf16", strategy="ddp")
    (folder / NAME / "values.yaml").write_text(VALUES)
    return folder


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    folder = tmp_path / "golden"
    folder.mkdir()
    shutil.copy(GOLDEN / f"{SHIPPED}.yaml", folder)
    return folder


def check_everything(helm: Path, charts: Path, golden: Path) -> None:
    """What test_golden.py and test_contract.py do with the shipped charts."""
    found = discover_charts(charts)
    check_no_stale_goldens(golden, found)
    for chart in found:
        documents: list[Document] = render(helm, charts / chart)
        check_trainer_contract(documents)
        check_analysis_contract(documents)
        check_golden(documents, golden, chart)


def test_it_is_found_and_passes_after_make_golden(helm: Path, charts: Path, golden: Path) -> None:
    assert discover_charts(charts) == [SHIPPED, NAME]
    write_goldens(helm, charts, golden)
    check_everything(helm, charts, golden)
    assert (golden / f"{SHIPPED}.yaml").read_text() == (GOLDEN / f"{SHIPPED}.yaml").read_text()


def test_without_a_golden_it_fails(helm: Path, charts: Path, golden: Path) -> None:
    with pytest.raises(AssertionError, match=r"ddp-bf16.yaml is missing: run `make golden`"):
        check_everything(helm, charts, golden)


def test_a_later_change_fails(helm: Path, charts: Path, golden: Path) -> None:
    write_goldens(helm, charts, golden)
    (charts / NAME / "values.yaml").write_text(VALUES.replace("micro_batch_size: 16", "micro_batch_size: 8"))
    with pytest.raises(AssertionError, match=r"ddp-bf16 renders differently: run `make golden`"):
        check_everything(helm, charts, golden)


def test_a_removed_chart_leaves_no_golden(helm: Path, charts: Path, golden: Path) -> None:
    write_goldens(helm, charts, golden)
    shutil.rmtree(charts / NAME)
    with pytest.raises(AssertionError, match=r"goldens without a chart: ddp-bf16: run `make golden`"):
        check_everything(helm, charts, golden)
    write_goldens(helm, charts, golden)
    check_everything(helm, charts, golden)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("dp_replicate: 3", "dp_replicate=3 makes 3 processes, but there are 4"),
        ("dp_shard: 2", "strategy ddp uses only dp_replicate"),
        ("global_batch_size: 65", "must be a multiple of"),
    ],
)
def test_values_that_the_trainer_refuses_fail(
    helm: Path, charts: Path, golden: Path, wrong: str, sentence: str
) -> None:
    """Also with a golden that was written without looking at it."""
    (charts / NAME / "values.yaml").write_text(f"{VALUES}    {wrong}\n")
    write_goldens(helm, charts, golden)
    with pytest.raises(ConfigError, match=sentence):
        check_everything(helm, charts, golden)


def test_a_chart_that_does_not_render_leaves_the_goldens_alone(
    helm: Path, charts: Path, golden: Path
) -> None:
    (charts / NAME / "values.yaml").write_text(f"{VALUES}    tpp: 2\n")
    before = {file.name: file.read_bytes() for file in golden.iterdir()}
    with pytest.raises(AssertionError, match="tpp"):
        write_goldens(helm, charts, golden)
    assert {file.name: file.read_bytes() for file in golden.iterdir()} == before


def test_it_refuses_what_is_not_under_run(helm: Path, charts: Path) -> None:
    done = helm_template(helm, charts / NAME, ["--set", "numNodes=2"])
    assert done.returncode == 1 and "numNodes" in done.stderr


@pytest.mark.parametrize("name", ["1d", "Zero3", "a/b", "..", "", "a-", "z" * 41, "ddp", "run"])
def test_a_name_that_cannot_be_one(charts: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(charts.rglob("*"))
    monkeypatch.setattr(new_chart, "CHARTS", charts)
    assert new_chart.main([name]) == 2
    assert sorted(charts.rglob("*")) == before


def test_from_the_command_line(
    charts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], helm: Path
) -> None:
    monkeypatch.setattr(new_chart, "CHARTS", charts)
    assert new_chart.main(["fsdp-2", "--strategy", "fsdp", "--describe", 'a: "b" # c']) == 0
    assert "make golden" in capsys.readouterr().out
    check_trainer_contract(render(helm, charts / "fsdp-2"))


@pytest.mark.parametrize("chart", discover_charts(CHARTS))
def test_the_shipped_charts_have_the_same_pattern(chart: str) -> None:
    folder = CHARTS / chart
    for path, text in FIXED.items():
        assert (folder / path).read_text() == text, path
    assert (folder / LIBRARY).readlink() == LIBRARY_TARGET
    files = {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or path.is_file()
    }
    assert files == {"Chart.yaml", "values.yaml", str(LIBRARY), *FIXED}, (
        "a copy of the library goes stale silently"
    )
    lines = (folder / "values.yaml").read_text().splitlines()
    assert len(lines) <= (
        16 if chart.startswith("llm-") else 10
    )  # those name model, data and lengths as well


def test_a_packed_copy_of_the_library_is_ignored_by_git_said_and_not_here() -> None:
    """`helm dependency update` leaves one beside the link, and Helm 3 renders it, also when the library has changed."""
    for path in ("charts/ddp/charts/run-0.1.0.tgz", "charts/ddp/Chart.lock"):
        assert subprocess.run(["git", "check-ignore", "--quiet", path], cwd=CHARTS.parent).returncode == 0, (
            path
        )
    for file in CHARTS.glob("*/Chart.yaml"):
        assert (
            "repository: file" not in file.read_text() or "remove charts/run-*.tgz again" in file.read_text()
        )
    packed = [str(path) for path in CHARTS.glob("*/charts/*.tgz")]
    assert packed == [], "left by `helm dependency update`, and stale after the next change: remove them"

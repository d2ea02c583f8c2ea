from __future__ import annotations

from inspect import signature
from pathlib import Path

import pytest
import yaml

from stratlab.rehearse.command import rehearse
from stratlab.rehearse.planned_run import DEFAULT_COMPARISON
from tests.documents.commands import ROOT
from trainer.launch import options
from trainer.launch.options import DEFAULT_RESULTS, build_environment
from trainer.settings.config import ConfigError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "training.yaml"
    path.write_text("strategy: ddp\nlr: 1\nsteps: 5\nseed: 3\n")
    return path


def test_the_environment_wins_over_the_file_and_set_over_both(file: Path) -> None:
    env = {"TRAINER_LR": "2", "TRAINER_SEED": "4", "PATH": "/bin"}
    typed = ["--config", str(file), "--set", "seed=5", "--set", "steps=null", "--set", "run=try"]
    found, _ = build_environment(typed, env)
    assert found == {
        "TRAINER_STRATEGY": "ddp",
        "TRAINER_LR": "2",
        "TRAINER_SEED": "5",
        "TRAINER_RUN": "try",
        "PATH": "/bin",
        "PET_NPROC_PER_NODE": "1",
    }
    assert env == {"TRAINER_LR": "2", "TRAINER_SEED": "4", "PATH": "/bin"}


def test_null_takes_back_what_the_environment_says(file: Path) -> None:
    found, _ = build_environment(["--config", str(file), "--set", "lr=null"], {"TRAINER_LR": "2"})
    assert "TRAINER_LR" not in found


def test_a_run_without_a_name_is_called_as_its_chart(file: Path, tmp_path: Path) -> None:
    found, said = build_environment(["--config", str(file)], {})
    assert found["TRAINER_RUN"] == "ddp" and "run directory: results/runs/default/ddp, processes: 1" in said
    (tmp_path / "results/runs/default/ddp").mkdir(parents=True)
    assert build_environment(["--config", str(file)], {})[0]["TRAINER_RUN"] == "ddp"
    for typed, name in (
        ("strategy=null", "single"),
        ("dimensions=3", "ddp"),
        ("lora_rank=8", "ddp"),
        ("strategy=nd", "llm-1d"),
    ):
        found, _ = build_environment(["--config", str(file), "--set", typed], {})
        assert found["TRAINER_RUN"] == name, typed


CHARTS = sorted(path.parent for path in (ROOT / "charts").glob("*/values.yaml"))


@pytest.mark.parametrize(
    "chart", [each for each in CHARTS if each.name not in ("run", "prepare")], ids=lambda each: each.name
)
def test_the_values_of_a_chart_make_the_run_that_its_rehearsal_makes(chart: Path) -> None:
    found, _ = build_environment(["--config", str(chart / "values.yaml")], {})
    name = yaml.safe_load((chart / "Chart.yaml").read_text())["name"]
    assert found["TRAINER_RUN"] == name
    assert found.get("TRAINER_COMPARISON", "default") == DEFAULT_COMPARISON


def test_rehearsals_and_the_trainer_have_one_default_folder() -> None:
    assert str(signature(rehearse).parameters["results"].default) == DEFAULT_RESULTS


def test_several_machines_must_be_given_one_name(file: Path) -> None:
    with pytest.raises(ConfigError, match="a run on several machines needs a name"):
        build_environment(["--config", str(file)], {"PET_NNODES": "2:2"})
    assert build_environment(["--set", "run=a"], {"PET_NNODES": "2"})[0]["TRAINER_RUN"] == "a"


def test_processes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "count_devices", lambda env: 2)
    values = file.with_name("values.yaml")
    values.write_text("run: {processesPerNode: 3, nodes: 1, config: {model: cnn}}\n")

    def processes(*arguments: str, **env: str) -> str:
        return build_environment(arguments, env)[0]["PET_NPROC_PER_NODE"]

    assert processes("--config", str(file)) == "2"
    assert processes("--config", str(values)) == "3"
    assert processes("--config", str(values), PET_NPROC_PER_NODE="4") == "4"
    assert processes("--config", str(values), "--processes", "5", PET_NPROC_PER_NODE="4") == "5"
    assert build_environment(["--config", str(values)], {})[1][0] == f"left out of {values}: run.nodes"


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "two", "", "²", "9" * 5000])
def test_a_number_of_processes_that_cannot_be_is_named_as_it_was_given(file: Path, number: str) -> None:
    with pytest.raises(ConfigError, match=f"^processes='{number}': expected a number from 1$"):
        build_environment(["--processes", number], {})
    values = file.with_name("values.yaml")
    values.write_text(f"run: {{processesPerNode: '{number or 0}'}}\n")
    with pytest.raises(ConfigError, match="^run.processesPerNode="):
        build_environment(["--config", str(values)], {})
    with pytest.raises(ConfigError, match="^PET_NPROC_PER_NODE="):
        build_environment(["--set", "run=a"], {"PET_NPROC_PER_NODE": number or "0"})


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(ConfigError, match="--conf x; python -m trainer --help"):
        build_environment(["--conf", "x"], {})

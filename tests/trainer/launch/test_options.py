from pathlib import Path

import pytest

from stratlab_spec.settings.config import ConfigError
from tests.codes import refuses
from trainer.launch import options
from trainer.launch.options import build_environment


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "training.yaml"
    path.write_text("strategy: ddp\nlr: 1\nsteps: 5\nseed: 3\n")
    return path


def test_the_environment_wins_over_the_file_and_set_over_both(file: Path) -> None:
    env = {"TRAINER_LR": "2", "TRAINER_SEED": "4", "TRAINER_TP": "2", "PATH": "/bin"}
    before = dict(env)
    typed = ["--config", str(file), "--set", "seed=5", "--set", "steps=null", "--set", "run=try"]
    typed += ["--set", "tp=null"]
    found, _ = build_environment(typed, env)
    assert found == {
        "TRAINER_STRATEGY": "ddp", "TRAINER_LR": "2", "TRAINER_SEED": "5", "TRAINER_RUN": "try",
        "PATH": "/bin", "PET_NPROC_PER_NODE": "1",
    }  # fmt: skip
    assert env == before


def test_a_run_without_a_name_is_called_as_its_chart(file: Path, tmp_path: Path) -> None:
    names = {"strategy=null": "single", "dimensions=3": "ddp", "lora_rank=8": "ddp", "strategy=nd": "llm-1d"}
    for typed, name in ({"seed=4": "ddp"} | names).items():
        found, said = build_environment(["--config", str(file), "--set", typed], {})
        assert found["TRAINER_RUN"] == name and f"results/runs/default/{name}" in said[-1], typed
        (tmp_path / f"results/runs/default/{name}").mkdir(parents=True, exist_ok=True)


def test_several_machines_must_be_given_one_name(file: Path) -> None:
    with refuses(ConfigError, "SL-run-unnamed"):
        build_environment(["--config", str(file)], {"PET_NNODES": "2:2"})
    assert build_environment(["--set", "run=a"], {"PET_NNODES": "2"})[0]["TRAINER_RUN"] == "a"


def test_processes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "count_devices", lambda env: 2)
    values = file.with_name("values.yaml")
    values.write_text("run: {processesPerNode: 3, nodes: 1, config: {model: cnn}}\n")

    def processes(*arguments: str, **env: str) -> str:
        return build_environment(arguments, env)[0]["PET_NPROC_PER_NODE"]

    assert (processes("--config", str(file)), processes("--config", str(values))) == ("2", "3")
    assert processes("--config", str(values), PET_NPROC_PER_NODE="4") == "4"
    assert processes("--config", str(values), "--processes", "5", PET_NPROC_PER_NODE="4") == "5"
    assert build_environment(["--config", str(values)], {})[1][0].endswith("run.nodes")


def test_an_unknown_option_is_named() -> None:
    with refuses(ConfigError, "SL-option-unknown", "--conf x"):
        build_environment(["--conf", "x"], {})

"""One sentence about memory from the verbs that start runs, and none where nobody knows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stratlab.predict.foretelling import VOLUME, foretell
from stratlab.predict.operations_file import SHIPPED
from stratlab.rehearse.planned_run import Request, build_plan
from stratlab.rendering.helm import REPOSITORY, find_helm
from stratlab.sweep.definition import Sweep
from stratlab.sweep.planned_release import build_plan as build_sweep_plan
from stratlab.sweep.planned_release import foretell_all
from trainer.forecast.operations_file import FOLDER

VIT = {"model": "vit_huge", "precision": "bf16", "strategy": "ddp", "global_batch_size": "4096"}


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def pods(**settings: str) -> dict[str, str]:
    given = {f"TRAINER_{name.upper()}": value for name, value in {**VIT, **settings}.items()}
    return {"PET_NNODES": "1:1", "PET_NPROC_PER_NODE": "8"} | given


def test_what_fits_is_one_short_sentence():
    told = foretell("ddp", pods(micro_batch_size="32"))
    assert told.startswith("ddp: foreseen for GPUs of 79.2 GiB: fits, ") and told.endswith(" GiB each")


def test_what_does_not_names_the_cause_and_what_to_try():
    told = foretell("ddp", pods(micro_batch_size="256"))
    assert ": does not fit, " in told and "most of it activations" in told
    assert "micro_batch_size=" in told and "fits at the same global batch" in told


@pytest.mark.parametrize(
    "settings",
    [
        {"memory_forecast": "false"},
        {"mode": "evaluate"},
        {"micro_batch_size": "many"},
        {"lora_rank": "8"},
        {"model": "vit_tiny"},
    ],
)
def test_where_nobody_knows_or_asks_nothing_is_said(settings: dict[str, str]):
    assert foretell("ddp", pods(micro_batch_size="256") | pods(**settings)) == ""
    assert foretell("ddp", pods() | {"PET_NPROC_PER_NODE": "auto"}) == ""


def test_files_of_the_results_go_first(tmp_path: Path):
    """A broken one is left out, as pods do it."""
    assert VOLUME == FOLDER
    (tmp_path / VOLUME).mkdir()
    shutil.copy(SHIPPED / "vit_huge-fsdp-8.json", tmp_path / VOLUME / "a.json")
    assert foretell("ddp", pods(micro_batch_size="32"), tmp_path)
    (tmp_path / VOLUME / "a.json").write_text("{}")
    assert foretell("ddp", pods(micro_batch_size="32"), tmp_path).startswith("ddp: foreseen")


def test_a_rehearsal_and_a_sweep_have_what_it_takes(tmp_path: Path):
    """The pods' environment, as both verbs have it."""
    settings = ["run.processesPerNode=8", *(f"run.config.{name}={value}" for name, value in VIT.items())]
    settings += ["run.config.dataset=synthetic", "run.config.micro_batch_size=256"]
    request = Request([REPOSITORY / "charts/ddp"], tmp_path / "runs", tmp_path / "mlflow", settings)
    (run,) = build_plan(request, "http://127.0.0.1:1")
    assert ": does not fit, " in foretell(run.name, run.pods[0].commands[-1].env, tmp_path / "runs")
    sweep = Sweep.model_validate(
        {
            "comparison": "demo",
            "charts": str(REPOSITORY / "charts"),
            "set": {
                "run.processesPerNode": 8,
                "run.config.model": "vit_huge",
                "run.config.dataset": "synthetic",
                "run.config.precision": "bf16",
                "run.config.global_batch_size": 4096,
            },
            "matrix": {"strategy": ["fsdp", "ddp", "zero3"], "run.config.micro_batch_size": [32, 256]},
        }
    )
    told = foretell_all(build_sweep_plan(sweep, tmp_path, find_helm(), lambda text: None))
    verdicts = [line.partition(" GiB: ")[2].partition(",")[0] for line in told]
    assert verdicts[:1] == ["does not fit"] and verdicts[-1] == "fits"
    assert verdicts == sorted(verdicts, key=lambda verdict: verdict == "fits")

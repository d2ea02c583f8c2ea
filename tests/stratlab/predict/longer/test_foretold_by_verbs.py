from __future__ import annotations

from pathlib import Path

from stratlab.helm import REPOSITORY, find_helm
from stratlab.predict.answering import foretell
from stratlab.rehearsal_plan import RehearsalRequest, build_rehearsal_plan
from stratlab.sweep.definition import Sweep
from stratlab.sweep.planned_release import build_sweep_plan, foretell_all

CONFIG = {"model": "vit_huge", "precision": "bf16", "dataset": "synthetic", "global_batch_size": 4096}


def test_a_rehearsal_and_a_sweep_have_what_it_takes(tmp_path: Path) -> None:
    """The pods' environment, as both verbs have it."""
    given = {f"run.config.{name}": value for name, value in CONFIG.items()} | {"run.processesPerNode": 8}
    settings = [f"{name}={value}" for name, value in given.items()]
    request = RehearsalRequest(
        [REPOSITORY / "charts/ddp"],
        tmp_path / "runs",
        tmp_path / "mlflow",
        [*settings, "run.config.micro_batch_size=256"],
    )
    (run,) = build_rehearsal_plan(request, "http://127.0.0.1:1")
    assert "activations" in foretell(run.name, run.pods[0].commands[-1].env, tmp_path / "runs")
    matrix = {"strategy": ["fsdp", "ddp"], "run.config.micro_batch_size": [32, 256]}
    charts = str(REPOSITORY / "charts")
    sweep = Sweep.model_validate({"comparison": "demo", "charts": charts, "set": given, "matrix": matrix})
    told = foretell_all(build_sweep_plan(sweep, tmp_path, find_helm(), lambda text: None))
    fits = ["activations" not in line for line in told]
    assert fits == sorted(fits) and set(fits) == {True, False}, "what does not fit first"

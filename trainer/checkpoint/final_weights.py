"""The weights of a finished run in Hugging Face format: those of its end, and those of its best checkpoint."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trainer.checkpoint.folder import CheckpointFolder
from trainer.engine import Engine
from trainer.failures import is_storage_full
from trainer.hangs.alone import do_alone
from trainer.run import Run

log = logging.getLogger("trainer")


def export_weights(
    run: Run, engine: Engine, model: nn.Module, best: dict[str, float] | None, facts: dict[str, Any]
) -> None:
    """model/ from the final weights, best_model/ from the best checkpoint if an earlier one is best; collective.

    Weights that do not fit on the volume are left out, and that is said.
    The engine holds the best weights afterwards.

    Args:
        model: as built, what the exporter takes the architecture from.
        best: validation of the best checkpoint.
        facts: of the data, for the exporter.
    """
    _export(run, engine, model, facts, run.folder.model)
    if best and int(best["step"]) != run.plan.steps:
        engine.load(CheckpointFolder(run.folder).step(int(best["step"])) / "engine")
        _export(run, engine, model, facts, run.folder.best_model)


def _export(run: Run, engine: Engine, model: nn.Module, facts: dict[str, Any], target: Path) -> None:
    state = engine.gather_state()
    do_alone(
        f"writing {target.name}",
        lambda: _write(run, state, model, facts, target),
        run.pulse,
        run.config.collective_timeout_s,
    )


def _write(run: Run, state: dict[str, Tensor], model: nn.Module, facts: dict[str, Any], target: Path) -> None:
    from trainer.models.export import export_model

    aside = target.with_name(f".tmp-{target.name}")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir()
        export_model(model, state, run.config, facts, aside)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(aside, target)
        log.info("weights in Hugging Face format: %s", target)
    except Exception as failure:  # safetensors has an error of its own for a full volume
        shutil.rmtree(aside, ignore_errors=True)
        if not is_storage_full(failure):
            raise
        log.warning("no weights in %s, the run ends without them: %s [SL-weights-left-out]", target, failure)

"""`layout: auto` is the same on every rank, whatever devices the machines have."""

from __future__ import annotations

import json
import os
from pathlib import Path

from stratlab_spec.memory.profiles import FOLDER, GIB
from stratlab_spec.plan import VARIABLE, resolve_plan
from stratlab_spec.settings.config import Config
from tests.ranks import fork_ranks
from trainer.memory_estimation.rules import settings_that_matter
from trainer.prepare.preparation import ensure_cache

RANKS = 6
TEXT = {
    "TRAINER_MODEL": "qwen_tiny",
    "TRAINER_DATASET": "arithmetic",
    "TRAINER_SEQ_LEN": "64",
    "TRAINER_TRAIN_SAMPLES": "64",
    "TRAINER_STRATEGY": "nd",
    "TRAINER_DIMENSIONS": "2",
    "TRAINER_GLOBAL_BATCH_SIZE": "24",
    "TRAINER_MICRO_BATCH_SIZE": "1",
    "TRAINER_PRECISION": "fp32",
}


def write_operations(path: Path, config: Config) -> None:
    """A stand-in for a count of the first layout: 10 GiB of activations."""
    axes = {"dp_replicate": 1, "dp_shard": 3, "cp": 1, "tp": 1, "pp": 2, "ep": 1}
    windows = {"backward": {"activations": 10 * GIB}, "optimizer": {"parameters": 1 << 20}}
    content = {
        "schema_version": 1,
        "key": "a stand-in",
        "settings": settings_that_matter(config, ()),
        "defaults": {},
        "versions": {},
        **dict.fromkeys(("labels", "channels"), 0),
        "layers": 4,
        "scales_depth": False,
        "scales_ranks": False,
        "accumulates": True,
        "samples": [{"layers": 4, "rows": 1, "ranks": RANKS, "rank": 0, "axes": axes, "windows": windows}],
    }
    path.parent.mkdir()
    path.write_text(json.dumps(content))


def test_a_run_takes_the_layout_that_fits_on_every_rank(tmp_path: Path):
    env = TEXT | {"TRAINER_RUN": "nd", "TRAINER_RESULTS": str(tmp_path), "TRAINER_STEPS": "2"}
    env |= {"TRAINER_PROFILE_STEPS": "0", "STRATLAB_LAUNCHER": "test"}
    config = Config.from_env(env)
    write_operations(tmp_path / FOLDER / "2d.json", config)
    samples = ensure_cache(config, lambda text: None)
    plans = [resolve_plan(config, RANKS, RANKS, samples, gib * GIB).as_variable() for gib in (80, 10)]

    def be_worker() -> None:
        from trainer import worker

        os.environ[VARIABLE] = plans[os.environ["RANK"] == "5"]
        raise SystemExit(worker.main())

    done = fork_ranks(be_worker, RANKS, env=env)
    assert [rank.exit_code for rank in done] == [0] * RANKS, "\n".join(rank.output[-2000:] for rank in done)
    resolved = json.loads((tmp_path / "default/nd/config.json").read_text())["resolved"]
    assert resolved["layout"]["name"] == "pp3.dp2" and resolved["axes"]["pp"] == 3
    assert "10.00 GiB" in resolved["layout"]["reason"] and "pp2.dp3" in resolved["layout"]["reason"]
    assert "memory_forecast" not in resolved, "no file tells of what was chosen"

"""A rank that was handed another plan than its own settings lead to ends before it trains."""

from __future__ import annotations

import os

from stratlab_spec.exit_codes import BAD_CONFIG
from stratlab_spec.plan import VARIABLE, resolve_plan
from stratlab_spec.settings.config import Config
from tests.codes import find_codes
from tests.ranks import fork_ranks
from tests.trainer.kept_runs import settings
from tests.trainer.runs import run_worker


def test_a_rank_with_a_plan_of_other_settings_ends(tmp_path):
    env = settings(tmp_path, "single")

    def be_worker() -> None:
        other = Config.from_env({**env, "TRAINER_LR": "0.5"})
        os.environ[VARIABLE] = resolve_plan(other, 1, 1, 1000).as_variable()
        raise SystemExit(run_worker())

    (rank,) = fork_ranks(be_worker, 1, env=env)
    assert rank.exit_code == BAD_CONFIG and "SL-plan-other-settings" in find_codes(rank.output)
    assert not (tmp_path / "default/single/config.json").exists()

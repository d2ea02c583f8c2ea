"""Ranks that were handed a plan of other settings, or another one than the others, end before they train."""

import os
from dataclasses import replace

import pytest

from stratlab_spec.exit_codes import BAD_CONFIG
from stratlab_spec.plan import VARIABLE, resolve_plan
from stratlab_spec.settings.config import Config
from tests.codes import find_codes
from tests.ranks import fork_ranks
from tests.trainer.kept_runs import settings
from tests.trainer.runs import run_worker


@pytest.mark.parametrize(
    ("given", "more_steps", "code"),
    [({"TRAINER_LR": "0.5"}, 0, "SL-plan-other-settings"), ({}, 1, "SL-plan-differs")],
)
def test_a_rank_with_another_plan_ends(tmp_path, given, more_steps, code):
    env = settings(tmp_path, "ddp")
    plan = resolve_plan(Config.from_env(env | given), 2, 2, 1294)

    def be_worker() -> None:
        own = replace(plan, steps=plan.steps + more_steps * int(os.environ["RANK"]))
        os.environ[VARIABLE] = own.as_variable()
        raise SystemExit(run_worker())

    for rank in fork_ranks(be_worker, 2, env=env):
        assert rank.exit_code == BAD_CONFIG and code in find_codes(rank.output), rank.output[-2000:]
    assert not (tmp_path / "default/ddp/config.json").exists()

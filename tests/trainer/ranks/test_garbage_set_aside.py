"""Ranks do not stop for a walk over all that they are made of (trainer/measuring/garbage.py)."""

from __future__ import annotations

import gc
import json

from tests.ranks import fork_ranks
from tests.trainer.ranks.test_hangs import settings


def be_worker() -> None:
    from trainer import worker
    from trainer.outcome.tracking import Recorder

    whole, aside = Recorder.record_step, {}

    def record_step(self, step, *given):
        aside[step] = gc.get_freeze_count()
        return whole(self, step, *given)

    Recorder.record_step = record_step
    code = worker.main()
    print("aside " + json.dumps(aside), flush=True)
    raise SystemExit(code)


def test_a_run_sets_itself_aside_behind_its_first_step(tmp_path):
    ended = fork_ranks(be_worker, 1, env=settings(tmp_path, "single"))
    assert ended[0].exit_code == 0, ended[0].output[-2000:]
    line = next(line for line in ended[0].output.splitlines() if line.startswith("aside "))
    aside = {int(step): count for step, count in json.loads(line.removeprefix("aside ")).items()}
    assert aside[2] > aside[1] and len(aside) == 8

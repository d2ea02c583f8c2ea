"""The real worker: what ranks hold under different strategies, and how one ends that a library kills."""

from __future__ import annotations

import faulthandler
import gc
import json
import resource
import signal

import pytest

from tests.ranks import fork_ranks
from tests.trainer.ranks import test_worker
from tests.trainer.ranks.test_worker import read, settings

finished = test_worker.finished
FACTS = ("initial_weights_sha256", "data_order_sha256")


def test_what_a_rank_holds_is_what_its_strategy_promises_of_the_same_start_and_data(finished):
    summaries = {name: read(finished(name), "summary.json") for name in ("ddp", "fsdp", "zero2")}
    assert len({tuple(summary[name] for name in FACTS) for summary in summaries.values()}) == 1

    def held(strategy: str, kind: str) -> float:
        return summaries[strategy][f"{kind}_memory_gib"]

    for kind in ("parameter", "gradient", "optimizer"):
        assert held("fsdp", kind) == pytest.approx(held("ddp", kind) / 2, rel=0.05)
    assert held("zero2", "optimizer") == pytest.approx(held("ddp", "optimizer") / 2, rel=0.05)
    # a tensor that crosses the border of two shards is held whole by one of them: visible in a model this small
    assert 0.49 < held("zero2", "gradient") / held("ddp", "gradient") < 0.65
    assert held("zero2", "parameter") == pytest.approx(held("ddp", "parameter") * 1.5, rel=0.05)


def test_a_run_sets_itself_aside_behind_its_first_step_and_a_signal_leaves_its_stack(tmp_path):
    """Ranks do not stop for a walk over all that they are made of (trainer/measuring/held_tensors.py)."""

    def crash_at_the_third_step() -> None:
        from trainer import worker
        from trainer.metrics.tracking import Recorder
        from trainer.strategies import single

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # or it leaves its memory in the checkout
        faulthandler.disable()  # tests/ranks.py turns it on as well
        step, record, aside = single.TorchEngine.train_step, Recorder.record_step, []

        def train_step(self, *given):
            if len(aside) == 2:
                (tmp_path / "aside.json").write_text(json.dumps(aside))
                signal.raise_signal(signal.SIGSEGV)
            return step(self, *given)

        def record_step(self, *given):
            aside.append(gc.get_freeze_count())
            return record(self, *given)

        single.TorchEngine.train_step, Recorder.record_step = train_step, record_step
        raise SystemExit(worker.main())

    env = settings(tmp_path, "single", TRAINER_PROFILE_STEPS="0")
    (done,) = fork_ranks(crash_at_the_third_step, 1, env=env)
    assert done.exit_code == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.output and "loop.py" in done.output
    first, second = json.loads((tmp_path / "aside.json").read_text())
    assert second > first


def test_fp16_on_a_cpu_is_refused_before_the_process_group_starts(tmp_path):
    def attempt() -> None:
        import torch.distributed as dist

        from trainer import worker

        dist.init_process_group = None  # type: ignore[assignment]
        raise SystemExit(worker.main())

    (done,) = fork_ranks(attempt, 1, env=settings(tmp_path, "single", TRAINER_PRECISION="fp16"))
    assert done.exit_code == 2 and "TRAINER_PRECISION=fp16" in done.output, done.output[-2000:]

"""A batch that is not finite, and a device without memory, on one rank under each kind of engine."""

import json
from pathlib import Path

import pytest

from stratlab_spec.settings.config import Config
from tests.codes import find_codes
from tests.ranks import fork_ranks
from tests.trainer.ranks import test_text_worker
from tests.trainer.ranks.test_hangs import settings
from tests.trainer.runs import run_worker
from trainer.prepare.preparation import ensure_cache

BAD_STEP, BAD_RANK, STEPS = 6, 1, 12


def build_worker(bad: tuple[int, int] | None):
    """The real one; on one rank the loss of one step is not a number, and so are the gradients that come of it."""

    def be_worker() -> None:
        import os

        from trainer.engines.torch_engine import TorchEngine
        from trainer.models.chunked_cross_entropy import TokenLoss
        from trainer.models.model_with_loss import ClassLoss
        from trainer.strategies.zero import DeepSpeedEngine

        state = {"step": 0, "bad": False}
        if bad and int(os.environ["RANK"]) == bad[1]:
            for engine in (TorchEngine, DeepSpeedEngine):
                _count_steps(engine, bad[0], state)
            for loss in (ClassLoss, TokenLoss):
                _spoil(loss, state)
        raise SystemExit(run_worker())

    return be_worker


def _count_steps(engine, bad_step: int, state: dict) -> None:
    whole = engine.train_step

    def train_step(self, batch, lr):
        state["step"] += 1
        state["bad"] = state["step"] == bad_step
        try:
            return whole(self, batch, lr)
        finally:
            state["bad"] = False

    engine.train_step = train_step


def _spoil(loss, state: dict) -> None:
    whole = loss.forward

    def forward(self, *given):
        made = whole(self, *given)
        if not state["bad"]:
            return made
        return (made[0] * float("nan"), *made[1:]) if isinstance(made, tuple) else made * float("nan")

    loss.forward = forward


def train(
    results: Path,
    strategy: str,
    policy: str,
    ranks: int = 2,
    bad: tuple[int, int] | None = (BAD_STEP, BAD_RANK),
    **more: str,
):
    fixed = {
        "TRAINER_STEPS": str(STEPS),
        "TRAINER_ON_NOT_FINITE": policy,
        "TRAINER_COLLECTIVE_TIMEOUT_S": "120",
    }
    more = fixed | more
    if strategy.startswith("nd"):
        env = test_text_worker.settings(
            results, strategy, TRAINER_PROFILE_STEPS="0", STRATLAB_NODE="node-7", **more
        )
        ensure_cache(Config.from_env(env), print)
    else:
        env = settings(results, strategy, **more)
    return fork_ranks(build_worker(bad), ranks, env=env), results / "default" / env["TRAINER_RUN"]


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def check_said(text: str) -> None:
    assert "SL-loss-not-finite" in find_codes(text) and "step 6 " in text
    assert "rank 1 " in text and "node-7" in text


def test_a_run_stops_and_says_whose_loss_it_was(tmp_path):
    ended, folder = train(tmp_path, "ddp", "stop")
    assert [r.exit_code for r in ended] == [12, 12], ended[0].output[-2000:]
    check_said(ended[0].output)
    assert [line for line in lines(folder) if line["kind"] == "train"][-1]["step"] - BAD_STEP < 20
    assert not (folder / "summary.json").exists()


def test_the_update_is_left_out_on_all_ranks_alike(tmp_path):
    ended, folder = train(tmp_path, "zero2", "skip")
    assert [r.exit_code for r in ended] == [0, 0], ended[0].output[-2000:]
    found = lines(folder)
    train_lines = {line["step"]: line for line in found if line["kind"] == "train"}
    assert [step for step, line in train_lines.items() if line["skipped"]] == [BAD_STEP]
    assert "loss" not in train_lines[BAD_STEP] and all("loss" in train_lines[s] for s in range(7, STEPS + 1))
    (event,) = [line for line in found if "SL-loss-not-finite" in find_codes(line.get("text", ""))]
    check_said(event["text"])
    assert json.loads((folder / "summary.json").read_text())["skipped_steps"] == 1


def be_worker(failing: int = 7) -> None:
    import torch

    from trainer.engines.torch_engine import TorchEngine

    whole, steps = TorchEngine._update, [0]

    def update(self, lr):
        steps[0] += 1
        if steps[0] == failing:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...\nmore"
            )
        return whole(self, lr)

    TorchEngine._update = update
    raise SystemExit(run_worker())


@pytest.mark.parametrize(("failing", "ranks"), [(7, 2), (1, 1)])
def test_the_end_says_what_held_the_memory_and_what_to_try(tmp_path, failing, ranks):
    env = settings(tmp_path, "ddp", TRAINER_COLLECTIVE_TIMEOUT_S="120")
    ended = fork_ranks(lambda: be_worker(failing), ranks, env=env)
    assert [r.exit_code for r in ended] == [10] * ranks, ended[0].output[-2000:]
    said = ended[0].output
    assert "SL-device-memory" in find_codes(said) and f"step {failing} " in said and "node-7" in said
    assert "GPU 0 has" not in said, "torch's advice is in the file"
    assert "TRAINER_MICRO_BATCH_SIZE=4" in said and ("TRAINER_STRATEGY=zero1" in said) == (ranks > 1)
    found = json.loads((tmp_path / f"default/try/ranks/rank{ranks - 1}.out_of_memory.json").read_text())
    assert (found["step"], found["phase"], found["rank"]) == (failing, "optimizer", ranks - 1)
    parts = found["parts_gib"]
    assert {"parameters", "gradients", "rest", "data_set"} <= parts.keys() and ("optimizer" in parts) == (
        failing > 1
    )
    assert parts["gradients"] > 0 < parts["parameters"] and found["peak_gib"] >= found["held_gib"] > 0
    assert found["try"][0] == {"micro_batch_size": 4}

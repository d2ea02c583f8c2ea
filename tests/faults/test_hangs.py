"""Hangs, and the right rank in each; healthy runs that take long in one way or another, and no alarm."""

import time

import pytest

from tests.ranks import fork_ranks
from tests.trainer.planted_hangs import HUNG_AT, WAYS
from tests.trainer.ranks.test_hangs import TIMEOUT_S, settings, train, watch
from tests.trainer.runs import run_worker

STRATEGIES = ("ddp", "fsdp", "zero2", "zero3")
SECONDS = 1.5 * TIMEOUT_S
"""Of what is slow in a healthy run: beyond the time-out of a collective."""
NOTICED_S = 30
"""Behind the time-out, until the others have ended."""
# every way with two strategies, every strategy with both places, once with more ranks
HANGS = [
    (way, STRATEGIES[(i + j) % 4], ("data", "backward")[j], *((2, j) if i or j else (4, 2)))
    for i, way in enumerate(WAYS)
    for j in (0, 1)
]


@pytest.mark.parametrize(("way", "strategy", "place", "ranks", "rank"), HANGS)
def test_the_right_rank_is_named(tmp_path, record_property, way, strategy, place, ranks, rank):
    batch = {"TRAINER_GLOBAL_BATCH_SIZE": str(16 * ranks)}
    watchdog, ended, _ = train(tmp_path, strategy, ranks, {"way": way, "rank": rank, "place": place}, **batch)
    assert watchdog.verdict, "\n".join(r.output[-2000:] for r in ended)
    assert watchdog.verdict.ranks == [rank], watchdog.verdict.sentence
    assert f"rank {rank} (node node-7, pod pod-0)" in watchdog.verdict.sentence
    codes = {r.exit_code for r in ended if r.rank != rank}
    assert 134 in codes <= {134, -9}, "the first one ends by itself, whoever is late with it"
    seconds = time.time() - float((tmp_path / HUNG_AT).read_text())
    record_property("seconds_to_recover", round(seconds, 1))  # until the run's end
    assert seconds < TIMEOUT_S + NOTICED_S


def compute_for(seconds: float) -> None:
    import hashlib

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        hashlib.sha256(bytes(1 << 20)).digest()


def slow_once(what: str) -> None:
    """The first time: all ranks are at it, as with a compiler, or rank 0 alone, while the others wait."""
    from trainer.checkpoint.folder import CheckpointFolder
    from trainer.engines.torch_engine import TorchEngine
    from trainer.engines.zero_engine import DeepSpeedEngine
    from trainer.models import export

    engines = (TorchEngine, DeepSpeedEngine)
    places = {
        "train_step": engines, "evaluate": engines, "choose": (CheckpointFolder,),
        "export_model": (export,),
    }  # fmt: skip
    for owner in places[what]:
        whole, done = getattr(owner, what), []

        def slow(*given, whole=whole, done=done, **named):
            if not done:
                done.append(True)
                compute_for(SECONDS)
            return whole(*given, **named)

        setattr(owner, what, slow)


HEALTHY = [("train_step", "zero3"), ("evaluate", "fsdp"), ("choose", "zero2"), ("export_model", "ddp")]


@pytest.mark.parametrize(("what", "strategy"), HEALTHY)
def test_a_healthy_run_that_takes_long_raises_no_alarm(tmp_path, what, strategy):
    def be_worker() -> None:
        slow_once(what)
        raise SystemExit(run_worker())

    watchdog = watch(tmp_path, 2)
    env = settings(tmp_path, strategy, TRAINER_CHECKPOINT_EVERY="8")
    watchdog.set_environment(env)
    watchdog.start()
    try:
        ended = fork_ranks(be_worker, 2, env=env, timeout_s=240)
    finally:
        watchdog.stop()
    assert [r.exit_code for r in ended] == [0, 0], "\n".join(r.output[-2000:] for r in ended)
    assert watchdog.verdict is None
    assert not list((tmp_path / "default" / "try").glob("hangs/*.json"))

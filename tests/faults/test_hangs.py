"""Twenty hangs and the right rank in each; twenty healthy runs that take long in one way or another, and no alarm.

Ways: asleep in Python, with Python's lock, stopped, waiting for data. Places: where a batch is made, or in the backward
pass. The launcher's watchdog runs in this process, the ranks in others, as in a pod.
"""

from __future__ import annotations

import itertools
import time

import pytest

from tests.ranks import fork_ranks
from tests.trainer.planted_hangs import HUNG_AT, WAYS
from tests.trainer.ranks.test_hangs import TIMEOUT_S, settings, train, watch

STRATEGIES = ("ddp", "fsdp", "zero2", "zero3")
SECONDS = 1.5 * TIMEOUT_S
"""Of what is slow in a healthy run: beyond the time-out of a collective."""
NOTICED_S = 30
"""Behind the time-out, until the others have ended."""


def hangs() -> list[tuple[str, str, str, int, int]]:
    """(way, strategy, place, ranks, the one that hangs): 16 of all ways and strategies, and 4 with more ranks."""
    few = [
        (way, strategy, ("data", "backward")[(i + j) % 2], 2, (i + j) % 2)
        for (i, way), (j, strategy) in itertools.product(enumerate(WAYS), enumerate(STRATEGIES))
    ]
    many = [(way, "ddp" if i % 2 else "fsdp", "data", 3 + i % 2, 1 + i % 2) for i, way in enumerate(WAYS)]
    return few + many


@pytest.mark.parametrize(("way", "strategy", "place", "ranks", "rank"), hangs())
def test_the_right_rank_is_named(tmp_path, record_property, way, strategy, place, ranks, rank):
    batch = {"TRAINER_GLOBAL_BATCH_SIZE": str(16 * ranks)}
    watchdog, ended, _ = train(tmp_path, strategy, ranks, {"way": way, "rank": rank, "place": place}, **batch)
    assert watchdog.verdict, "\n".join(r.output[-2000:] for r in ended)
    assert watchdog.verdict.ranks == [rank], watchdog.verdict.sentence
    assert f"rank {rank} (node node-7, pod pod-0) did not arrive: at step 4" in watchdog.verdict.sentence
    codes = {r.exit_code for r in ended if r.rank != rank}
    assert 134 in codes <= {134, -9}, "the first one ends by itself, whoever is late with it"
    seconds = time.time() - float((tmp_path / HUNG_AT).read_text())
    record_property("seconds_to_recover", round(seconds, 1))  # until the run's end
    assert seconds < TIMEOUT_S + NOTICED_S


def compute_for(seconds: float) -> None:
    import hashlib
    import time

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        hashlib.sha256(bytes(1 << 20)).digest()


def slow_first_step() -> None:
    """All ranks are at it, as with a compiler: none waits for another."""
    from trainer.engines.torch_engine import TorchEngine
    from trainer.engines.zero_engine import DeepSpeedEngine

    for engine in (TorchEngine, DeepSpeedEngine):
        _slow_once(engine, "train_step")


def slow_evaluation() -> None:
    from trainer.engines.torch_engine import TorchEngine
    from trainer.engines.zero_engine import DeepSpeedEngine

    for engine in (TorchEngine, DeepSpeedEngine):
        _slow_once(engine, "evaluate")


def slow_choice() -> None:
    """Rank 0 alone, while the others wait."""
    from trainer.checkpoint.folder import CheckpointFolder

    _slow_once(CheckpointFolder, "choose")


def slow_export() -> None:
    """Rank 0 alone, at the end."""
    from trainer.models import export

    whole = export.export_model
    export.export_model = lambda *given: compute_for(SECONDS) or whole(*given)


def _slow_once(owner, name: str) -> None:
    whole, done = getattr(owner, name), []

    def slow(*given, **named):
        if not done:
            done.append(True)
            compute_for(SECONDS)
        return whole(*given, **named)

    setattr(owner, name, slow)


HEALTHY = {
    "as it is": lambda: None,
    "first step": slow_first_step,
    "evaluation": slow_evaluation,
    "choice": slow_choice,
    "export": slow_export,
}


@pytest.mark.parametrize(("what", "strategy"), itertools.product(HEALTHY, STRATEGIES))
def test_a_healthy_run_that_takes_long_raises_no_alarm(tmp_path, what, strategy):
    plant = HEALTHY[what]

    def be_worker() -> None:
        from trainer import worker

        plant()
        raise SystemExit(worker.main())

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

"""Short runs with checkpoints: real workers, real engines, digits."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.ranks import fork_ranks
from tests.trainer.runs import run_worker

STEPS = 12
KEPT = {
    "TRAINER_MODEL": "cnn", "TRAINER_STEPS": str(STEPS), "TRAINER_EVALUATE_EVERY": "6",
    "TRAINER_CHECKPOINT_EVERY": "5", "TRAINER_LOG_EVERY": "2", "TRAINER_LR_SCHEDULE": "cosine",
    "TRAINER_PROFILE_STEPS": "0", "TRAINER_IMAGE_SIZE": "8", "TRAINER_GLOBAL_BATCH_SIZE": "32",
    "TRAINER_MICRO_BATCH_SIZE": "8", "STRATLAB_LAUNCHER": "test",
}  # fmt: skip


def settings(results: Path, strategy: str, **more: str) -> dict[str, str]:
    where = {"TRAINER_RUN": strategy, "TRAINER_RESULTS": str(results), "TRAINER_STRATEGY": strategy}
    return {name: value for name, value in (where | KEPT | more).items() if value}  # "" = not given


def be_worker() -> None:
    raise SystemExit(run_worker())


def train(
    results: Path,
    strategy: str,
    ranks: int,
    target: Callable[[], None] = be_worker,
    codes: tuple[int, ...] = (0,),
    **more: str,
) -> Path:
    """Runs `target` in every rank, checks how they end; the run directory."""
    done = fork_ranks(target, ranks, env=settings(results, strategy, **more), grace_s=20)
    assert {r.exit_code for r in done} == set(codes), "\n".join(r.output[-2500:] for r in done)
    return results / "default" / strategy


def lines(folder: Path, kind: str = "") -> list[dict]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if kind in ("", line["kind"])]


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text())

"""A state saved under one strategy and gone on with under another one, against the run that was not moved."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stratlab_spec.settings.config import Config
from tests.parity_llm.models import ROWS, SEQ_LEN, build_share
from tests.ranks import run_ranks
from tests.trainer.runs import run_of
from tests.trainer.saving import save_state
from tests.trainer.strategies.small import largest_difference, make_config, start, steps
from trainer.distributed.world import Precision
from trainer.measuring.phases import Phases

SAVED, LAST = 3, 6
GATE = 1e-5
"""Of losses, and of norms as a part of them: those of experts are 7, in steps of 5e-7."""
RANKS = {"single": 1}
"""Of a strategy that has no choice; else 2."""
TEXT: dict[str, dict[str, Any]] = {
    "tied": {}, "adapters": {"lora_rank": 4}, "experts": {"model": "qwen_moe_tiny"},
}  # fmt: skip
MICRO = 2


def save(folder: Path, strategy: str, case: str, world_size: int = 0, **settings: Any) -> None:
    """Trains to step 3 and saves; losses of the steps behind it and the weights of then lie beside it."""
    (folder / "engine").mkdir(parents=True)

    def rank() -> None:
        engine, train = _start(strategy, case, seed=0, **settings)
        train(1, SAVED)
        save_state(engine, folder / "engine")
        held = engine.gather_state()
        seen = train(SAVED + 1, LAST)
        if os.environ["RANK"] == "0":
            torch.save([held, seen], folder / "wanted.pt")
        engine.close()

    run_ranks(rank, world_size or RANKS.get(strategy, 2), timeout_s=300)


def go_on(folder: Path, strategies: Sequence[str], case: str, world_size: int = 0, **settings: Any) -> None:
    """An engine with other weights reads it: the weights are the same bits, the next losses and norms within GATE."""

    def rank() -> None:
        for strategy in strategies:
            engine, train = _start(strategy, case, seed=7, **settings)
            fresh = engine.gather_state()
            engine.load(folder / "engine")
            held, seen = engine.gather_state(), train(SAVED + 1, LAST)
            if os.environ["RANK"] == "0":
                wanted, losses = torch.load(folder / "wanted.pt", weights_only=True)
                assert largest_difference(fresh, wanted) > 0.01, (
                    "else a load that does nothing would not be seen"
                )
                assert largest_difference(held, wanted) == 0.0
                pairs = list(zip(seen, losses, strict=True))
                told = f"{strategy}: losses and norms {seen}, not moved {losses}"
                assert max(abs(a - b) for (a, _), (b, _) in pairs) < GATE, told
                assert max(abs(a - b) / b for (_, a), (_, b) in pairs) < GATE, told
            engine.close()

    run_ranks(rank, world_size or max(RANKS.get(strategy, 2) for strategy in strategies), timeout_s=300)


def _start(strategy: str, case: str, seed: int, **settings: Any) -> Any:
    """(engine, function that trains from one step to another) of an image network, or of a decoder."""
    world_size = int(os.environ["WORLD_SIZE"])
    if case in TEXT:
        return _start_text(strategy, seed, **TEXT[case], **settings)
    config = make_config(strategy, world_size, seed=seed, clip_norm=0.5, **settings)
    engine = start(config, frozen=case == "frozen")
    return engine, lambda first, last: steps(engine, config, first, last)


def _start_text(strategy: str, seed: int, **settings: Any) -> Any:
    """Rows are shared out over the data ranks alone: nd has others."""
    from trainer.models.decoder_build import build_decoder
    from trainer.strategies import build_engine, builds_empty

    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    named = {"run": "try", "model": "qwen_tiny", "task": "text", "precision": "fp32", "lr": 0.01}
    named |= {"global_batch_size": ROWS, "micro_batch_size": MICRO, "seq_len": SEQ_LEN, "clip_norm": 0.5}
    named |= {"layout": "given"} if strategy == "nd" else {}
    config = Config(**named | {"strategy": strategy, "seed": seed} | settings)
    decoder = build_decoder(config, empty=builds_empty(config, dist.get_rank()))
    run = run_of(config, Precision("fp32"))
    engine, axes = build_engine(run, decoder, Phases("cpu")), run.axes

    def train(first: int, last: int) -> list[tuple[float, float]]:
        seen = []
        for step in range(first, last + 1):
            rows = build_share(step, True, axes.dp_rank(dist.get_rank()), axes.dp, MICRO)
            result = engine.train_step(rows, config.lr)
            loss = result.loss.detach().clone()
            dist.all_reduce(loss)
            seen.append((float(loss), float(result.grad_norm)))
        return seen

    return engine, train

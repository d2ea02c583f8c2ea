"""A tied decoder and a mixture of experts under every data-parallel strategy: equal to one process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ranks import run_ranks
from tests.trainer.saving import save_state
from tests.trainer.strategies.small import largest_difference

STRATEGIES = ("hsdp", "zeropp")
"""tests/parity_llm has the others on every change, tests/nightly/trainer/test_text_models.py has them here."""
CASES: dict[str, dict[str, Any]] = {
    "tied": {},
    "adapters": {"lora_rank": 4},
    "experts": {"model": "qwen_moe_tiny"},
}
ROWS, SEQ, TIED = 4, 16, ("hf.lm_head.weight", "hf.model.embed_tokens.weight")


def batch_of(step: int, rank: int, world_size: int):
    """This rank's rows of a global batch of packed documents; how many labels count differs from row to row."""
    from trainer.data.batches import IGNORED, Batch

    source = torch.Generator().manual_seed(step)
    ids = torch.randint(0, 320, (ROWS, SEQ), generator=source)
    cuts = torch.randint(3, SEQ - 3, (ROWS, 1), generator=source)
    columns = torch.arange(SEQ).expand(ROWS, SEQ)
    positions = torch.where(columns < cuts, columns, columns - cuts)
    labels = torch.where(
        (columns == cuts - 1) | (columns == SEQ - 1) | (columns < 2), IGNORED, ids.roll(-1, 1)
    )
    labels[0, :9] = IGNORED
    inputs = torch.stack([ids, positions], dim=1)
    mine = range(rank * ROWS // world_size, (rank + 1) * ROWS // world_size)
    micro = [(inputs[i : i + 1], labels[i : i + 1]) for i in mine]
    return Batch(micro, ROWS, int((labels != IGNORED).sum()))


def start(strategy: str, **values: Any):
    """The engine and its configuration on this rank."""
    import torch.distributed as dist

    from tests.trainer.runs import run_of
    from trainer.measuring.phases import Phases
    from trainer.models.decoder_build import build_decoder
    from trainer.settings.config import Config
    from trainer.settings.precision import Precision
    from trainer.strategies import build_engine, builds_empty

    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    sizes = {"global_batch_size": ROWS, "micro_batch_size": 1, "seq_len": SEQ}
    named = {"run": "try", "model": "qwen_tiny", "task": "text", "precision": "fp32", "lr": 0.01}
    config = Config(**named | sizes | {"strategy": strategy, "clip_norm": 0.5} | values)
    decoder = build_decoder(config, empty=builds_empty(config, dist.get_rank()))
    precision = Precision(config.precision)
    return build_engine(run_of(config, precision), decoder, Phases("cpu")), config


def steps(engine, config, first: int, last: int) -> list[tuple[float, float]]:
    import torch.distributed as dist

    seen = []
    for step in range(first, last + 1):
        result = engine.train_step(batch_of(step, dist.get_rank(), dist.get_world_size()), config.lr)
        loss = result.loss.clone()
        dist.all_reduce(loss)
        seen.append((float(loss), float(result.grad_norm)))
    return seen


def train(folder: Path, strategy: str) -> None:
    """One rank: of every case two steps and an evaluation; rank 0 leaves what it saw in `folder`.

    With SGD the difference of two states is that of their gradients; AdamW makes 1e-5 of a rounding error.
    """
    import torch.distributed as dist

    for case, values in CASES.items():
        engine, config = start(strategy, optimizer="sgd", lr=1.0, **values)
        initial = engine.gather_state()
        seen = steps(engine, config, 1, 2)
        share = torch.stack([engine.evaluate(*micro) for micro in batch_of(9, 0, 1).micro]).sum(0)
        final = engine.gather_state()
        if dist.get_rank() == 0:
            torch.save([seen, share, initial, final], folder / case)
        engine.close()
        dist.barrier()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("single")
    run_ranks(lambda: train(folder, "single"), 1, timeout_s=300)
    return folder


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_decoder_trains_as_in_one_process(strategy, alone, tmp_path):
    compare_with_one_process(strategy, alone, tmp_path)


def compare_with_one_process(strategy: str, alone: Path, tmp_path: Path) -> None:
    """Losses, norms, an evaluation and weights of every case, in two processes."""
    run_ranks(lambda: train(tmp_path, strategy), 2, timeout_s=300)
    for case in CASES:
        seen, share, initial, final = torch.load(tmp_path / case, weights_only=True)
        seen_alone, share_alone, initial_alone, final_alone = torch.load(alone / case, weights_only=True)
        for a, b in zip(seen, seen_alone, strict=True):
            assert a == pytest.approx(b, abs=1e-5), case
        assert share.tolist() == pytest.approx(share_alone.tolist(), abs=1e-3), case
        assert largest_difference(initial, initial_alone) == 0, case
        assert largest_difference(final, final_alone) < 1e-5, case
        if case != "experts":
            assert torch.equal(*(final[name] for name in TIED)), case


def save_and_load(folder: Path, strategy: str) -> None:
    """One rank: a state is kept after step 1, and read by an engine with other weights."""
    engine, config = start(strategy)
    steps(engine, config, 1, 1)
    folder.mkdir(exist_ok=True)
    save_state(engine, folder)
    wanted = steps(engine, config, 2, 3)
    engine.close()
    engine, config = start(strategy, seed=7)
    engine.load(folder)
    assert steps(engine, config, 2, 3) == wanted
    engine.close()


@pytest.mark.parametrize("strategy", ["fsdp", "zero3"])
def test_the_state_of_a_tied_decoder_is_kept(strategy, tmp_path):
    run_ranks(lambda: save_and_load(tmp_path / "state", strategy), 2)


def test_a_state_is_read_by_another_number_of_processes(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()

    def save() -> None:
        engine, config = start("fsdp")
        steps(engine, config, 1, 1)
        save_state(engine, folder)
        leave(steps(engine, config, 2, 2), tmp_path / "two")

    def go_on() -> None:
        engine, config = start("single", seed=7)
        engine.load(folder)
        leave(steps(engine, config, 2, 2), tmp_path / "one")

    def leave(seen, out: Path) -> None:
        if os.environ["RANK"] == "0":
            torch.save(seen, out)

    run_ranks(save, 2)
    run_ranks(go_on, 1)
    two, one = (torch.load(tmp_path / name, weights_only=True) for name in ("two", "one"))
    assert one[0] == pytest.approx(two[0], abs=1e-5)

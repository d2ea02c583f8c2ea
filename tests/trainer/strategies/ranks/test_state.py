"""Saving, loading and gathering: bitwise at the same world size, resharded at another, refused with a sentence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.ranks import run_ranks
from tests.trainer.saving import save_state
from tests.trainer.strategies.small import largest_difference, make_config, start, steps, train
from trainer.settings.config import ConfigError

NATIVE = ("single", "ddp", "fsdp", "hsdp")
ZERO = ("zero1", "zero2", "zero3", "zeropp")


def save_at_3(folder: Path, out: Path, strategy: str, **settings) -> None:
    """One rank: trains to step 3, saves, goes on to step 6 and leaves the state of then."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    config = make_config(strategy, dist.get_world_size(), **settings)
    engine = start(config)
    steps(engine, config, 1, 3)
    save_state(engine, folder)
    steps(engine, config, 4, 6)
    leave(engine, out)


def load_and_continue(folder: Path, out: Path, strategy: str, **settings) -> None:
    """One rank: an engine with other weights loads the state of step 3 and goes on to step 6."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    config = make_config(strategy, dist.get_world_size(), **settings)
    engine = start(config.model_copy(update={"seed": 7}))
    engine.load(folder)
    steps(engine, config, 4, 6)
    leave(engine, out)


def leave(engine, out: Path) -> None:
    import torch.distributed as dist

    state = engine.gather_state()
    assert bool(state) == (dist.get_rank() == 0)
    if state:
        torch.save(state, out)
    engine.close()
    dist.barrier()


def read(path: Path) -> dict:
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("strategy", NATIVE + ZERO)
def test_a_resumed_run_is_the_same_run_bitwise(strategy, tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    world_size = 1 if strategy == "single" else 2
    run_ranks(lambda: save_at_3(folder, tmp_path / "whole", strategy, clip_norm=0.5), world_size)
    run_ranks(lambda: load_and_continue(folder, tmp_path / "resumed", strategy, clip_norm=0.5), world_size)
    assert largest_difference(read(tmp_path / "whole"), read(tmp_path / "resumed")) == 0.0


@pytest.mark.parametrize(
    "settings",
    [{"optimizer": "adamw"}, {"optimizer": "sgd"}, {"optimizer": "sgd", "momentum": 0.9, "lr": 0.1}],
)
def test_native_state_is_resharded_and_read_by_another_strategy(settings, tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    run_ranks(lambda: save_at_3(folder, tmp_path / "two", "fsdp", **settings), 2)
    for strategy, world_size in (("fsdp", 4), ("single", 1), ("ddp", 2)):
        out = tmp_path / f"{strategy}{world_size}"
        run_ranks(lambda s=strategy, o=out: load_and_continue(folder, o, s, **settings), world_size)
        assert largest_difference(read(tmp_path / "two"), read(out)) < 1e-5


def go_on(source: Path | None, last: int, target: Path, strategy: str) -> None:
    """One rank: loads `source` if there is one, trains up to step `last`, saves into the folder `target`."""
    import os

    config = make_config(strategy, int(os.environ["WORLD_SIZE"]))
    engine, first = start(config), 1
    if source:
        engine.load(source / "engine")
        first = int((source / "last").read_text()) + 1
    steps(engine, config, first, last)
    (target / "engine").mkdir(parents=True, exist_ok=True)
    save_state(engine, target / "engine")
    (target / "last").write_text(str(last))
    leave(engine, target / "state")


SIZES = {"fsdp": (4, 2, 1), "zero2": (4, 2, 1), "zero3": (2, 4)}
"""Each way to write a state once; tests/nightly/trainer/test_state.py has every strategy with every change."""


@pytest.mark.parametrize(("strategy", "sizes"), SIZES.items())
def test_a_run_goes_on_with_another_number_of_processes(strategy, sizes, tmp_path):
    compare_with_a_whole_run(strategy, sizes, tmp_path)


def compare_with_a_whole_run(strategy: str, sizes: Sequence[int], folder: Path) -> None:
    """Two steps with each number of processes, one after the other, against as many steps with two processes."""
    source = None
    for i, world_size in enumerate(sizes):
        target = folder / str(i)
        run_ranks(
            lambda s=source, i=i, t=target: go_on(s, 2 * (i + 1), t, strategy), world_size, timeout_s=300
        )
        source = target
    run_ranks(lambda: go_on(None, 2 * len(sizes), folder / "whole", strategy), 2)
    assert largest_difference(read(folder / "whole" / "state"), read(source / "state")) < 1e-5


def test_the_loss_scale_is_part_of_the_state(tmp_path):
    for strategy in ("single", "zero2"):
        folder = tmp_path / strategy
        folder.mkdir()

        def both(strategy=strategy, folder=folder) -> None:
            config = make_config(strategy, 1, precision="fp16")
            engine = start(config)
            engine.loss_scale.scale = 512.0
            steps(engine, config, 1, 2)
            save_state(engine, folder)
            other = start(config)
            other.load(folder)
            assert (other.loss_scale.scale, other.loss_scale.good_steps) == (512.0, 2)

        run_ranks(both, 1)


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, ran: Path) -> None:
        self.ran = ran

    def __reduce__(self):
        return open, (str(self.ran), "w")


@pytest.fixture
def saved_zero(tmp_path):
    """A folder that zero2 saved with one process."""
    folder = tmp_path / "state"
    folder.mkdir()
    run_ranks(lambda: save_at_3(folder, tmp_path / "one", "zero2"), 1)
    return folder


def refusal(folder: Path, out: Path, strategy: str, world_size: int = 1) -> str:
    """What rank 0 and every other rank are told."""

    def attempt() -> None:
        import os

        try:
            load_and_continue(folder, out, strategy)
        except ConfigError as failure:
            out.with_suffix(f".{os.environ['RANK']}").write_text(str(failure))

    run_ranks(attempt, world_size)
    texts = {out.with_suffix(f".{rank}").read_text() for rank in range(world_size)}
    assert len(texts) == 1, "every rank says the same"
    return texts.pop()


def test_what_cannot_be_loaded_is_refused_with_a_sentence_on_every_rank(saved_zero, tmp_path):
    out = tmp_path / "out"
    assert "holds no state of an engine" in refusal(tmp_path / "nothing", out, "zero2", 2)
    facts = saved_zero / "deepspeed_facts.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"world_size": 3}))
    assert "has files of 1 ranks, was saved by 3" in refusal(saved_zero, out, "zero2", 2)
    assert "has files of 1 ranks, was saved by 3" in refusal(saved_zero, out, "fsdp", 2)


@pytest.mark.parametrize("strategy", ["zero2", "zero3", "fsdp"])
def test_a_file_with_code_is_refused_before_anybody_unpickles_it(saved_zero, tmp_path, strategy):
    """By the strategy that wrote it, by another stage, and by one of plain PyTorch; torch alone would run it."""
    ran = tmp_path / "ran"
    planted = next((saved_zero / "deepspeed").glob("*optim_states.pt"))
    torch.save({"state": Payload(ran)}, planted)
    said = refusal(saved_zero, tmp_path / "out", strategy, 1)
    assert planted.name in said and "refused, not plain tensors or damaged" in said and not ran.exists()
    torch.load(planted, weights_only=False)
    assert ran.exists()


def test_a_truncated_file_is_refused(saved_zero, tmp_path):
    planted = next((saved_zero / "deepspeed").glob("*model_states.pt"))
    planted.write_bytes(planted.read_bytes()[:-100])
    assert planted.name in refusal(saved_zero, tmp_path / "out", "zero2")


@pytest.mark.parametrize("strategy", NATIVE + ZERO)
def test_the_gathered_state_has_the_models_names_and_plain_fp32_tensors(strategy, tmp_path):
    from tests.trainer.strategies.small import build_net

    run_ranks(lambda: train(tmp_path / "out", strategy, last=1), 1 if strategy == "single" else 2)
    _, initial, final, _ = read(tmp_path / "out")
    model = build_net(make_config(strategy, 1)).state_dict()
    assert list(sorted(final)) == sorted(model) and "gain" in final
    assert all(type(t) is torch.Tensor and t.dtype == torch.float32 and not t.is_meta for t in final.values())
    assert largest_difference(initial, model) == 0.0
    assert largest_difference(initial, final) > 0

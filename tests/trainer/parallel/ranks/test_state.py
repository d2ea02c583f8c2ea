"""A checkpoint of one mesh, read by another: weights and optimizer state are the same to the bit, and training goes on.

tests/parity_llm has the large table of meshes; here are the kinds of differences between two of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ranks import run_ranks
from tests.trainer.older_python import pickle_enums_by_name
from tests.trainer.saving import save_state

ROWS, TOKENS, STEPS = 12, 32, 2
SIZES = {"global_batch_size": ROWS, "micro_batch_size": 1, "seq_len": TOKENS, "packing": False, "lr": 1e-2}
TIED, EXPERTS = {"model": "qwen_tiny"}, {"model": "qwen_moe_tiny"}
ADAPTERS = {**TIED, "lora_rank": 4, "lora_targets": "q_proj,o_proj,up_proj,down_proj"}

# model, (ranks, degrees) that save, (ranks, degrees) that read
PAIRS = {
    "tied head on a stage of its own, then not": (TIED, (4, {"pp": 2, "tp": 2}), (2, {})),
    "uneven shards, then two stages per rank": (
        *(TIED, (3, {})),
        (4, {"pp": 2, "pp_schedule": "interleaved1f1b"}),
    ),
    "experts shared out otherwise": (
        *(EXPERTS, (4, {"tp": 2, "ep": 4})),
        (4, {"pp": 2, "dp_replicate": 2, "sequence_parallel": "auto"}),
    ),
    "adapters": (ADAPTERS, (4, {"pp": 2, "dp_shard": 2}), (2, {"tp": 2})),
}


def _build(settings, seed):

    import torch
    import torch.distributed as dist

    from tests.trainer.runs import run_of
    from trainer.measuring.phases import Phases
    from trainer.models.decoder_build import build_decoder
    from trainer.settings.config import Config
    from trainer.settings.precision import Precision
    from trainer.strategies import nd

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    config = Config(run="try", strategy="nd", layout="given", seed=seed, **SIZES, **settings)
    run = run_of(config, Precision("fp32"))
    model = build_decoder(config, empty=True)
    return nd.build(run, model, Phases("cpu")), run.axes, model


def _batch(step, axes):
    """The same rows on every mesh, of which this rank gets its share."""
    import torch
    import torch.distributed as dist

    from trainer.data.batches import Batch

    drawn = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 320, (ROWS, TOKENS + 1), generator=drawn)
    inputs = torch.stack([tokens[:, :-1], torch.arange(TOKENS).expand(ROWS, -1)], dim=1)
    own = ROWS // axes.dp
    first = axes.dp_rank(dist.get_rank()) * own
    micro = [(inputs[i : i + 1], tokens[i : i + 1, 1:]) for i in range(first, first + own)]
    return Batch(micro, ROWS, ROWS * TOKENS)


def _train(engine, axes, steps):
    """Losses of the steps, whole on every rank."""
    import torch.distributed as dist

    losses = []
    for step in steps:
        loss = engine.train_step(_batch(step, axes), 1e-2).loss.detach().clone()
        dist.all_reduce(loss)
        losses.append(loss.item())
    return losses


def _optimizer_state(engine):
    """Everything that this rank's optimizers hold, whole, by the names of the whole decoder."""
    import torch
    from torch.distributed.tensor import DTensor

    found = {}
    for stage in engine.stages:
        by_parameter = {p: name for name, p in stage.module.named_parameters()}
        for parameter, state in stage.optimizer.state.items():
            for key, value in state.items():
                whole = value.full_tensor() if isinstance(value, DTensor) else torch.as_tensor(value)
                found[by_parameter[parameter], key] = whole.clone()
    return found


def _save(settings, folder):
    import torch
    import torch.distributed as dist

    from trainer.parallel import state

    engine, axes, model = _build(settings, seed=1)
    losses = _train(engine, axes, range(STEPS))
    (folder / "engine").mkdir(exist_ok=True)
    save_state(engine, folder / "engine")
    whole = state.gather(engine)
    assert (whole.keys() == model.state_dict().keys()) if dist.get_rank() == 0 else not whole
    written = {"weights": whole, "optimizer": _optimizer_state(engine), "losses": losses}
    written["next"] = _train(engine, axes, range(STEPS, STEPS + 2))
    torch.save(written, folder / f"rank_{dist.get_rank()}.pt")


def _load(settings, folder):
    import torch
    import torch.distributed as dist

    from trainer.parallel import state

    engine, axes, _ = _build(settings, seed=2)
    first = torch.load(folder / "rank_0.pt")
    fresh = state.gather(engine)
    if dist.get_rank() == 0:  # else a load that does nothing would not be seen
        assert any(not torch.equal(fresh[name], first["weights"][name]) for name in fresh)
    for optimizer in engine.optimizers:
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.5
    state.load(engine, folder / "engine")
    groups = [group for optimizer in engine.optimizers for group in optimizer.param_groups]
    assert {group["weight_decay"] for group in groups} == {0.01}  # what it was saved with
    whole = state.gather(engine)
    if dist.get_rank() == 0:
        assert whole.keys() == first["weights"].keys()
        different = [name for name in whole if not torch.equal(whole[name], first["weights"][name])]
        assert not different, different
    saved = {}
    for path in sorted(folder.glob("rank_*.pt")):
        saved |= torch.load(path)["optimizer"]
    held = _optimizer_state(engine)
    assert held
    for (name, key), value in held.items():
        stored = saved.get((name, key))
        if stored is None:  # a head of its own here, the embedding there
            stored = saved[name.replace("hf.lm_head.weight", "hf.model.embed_tokens.weight"), key]
        assert torch.equal(value, stored), (name, key)
        assert key != "step" or value.item() == STEPS
    losses = _train(engine, axes, range(STEPS, STEPS + 2))
    assert losses == pytest.approx(first["next"], abs=1e-5), (losses, first["losses"], first["next"])


SOME = ("tied head on a stage of its own, then not", "experts shared out otherwise")
"""The other pairs: tests/nightly/trainer/test_meshes.py."""


@pytest.mark.parametrize("pair", SOME)
def test_another_mesh_goes_on(pair, tmp_path):
    check_pair(pair, tmp_path)


def check_pair(pair: str, tmp_path: Path) -> None:
    model, (ranks, degrees), (other_ranks, other_degrees) = PAIRS[pair]
    run_ranks(lambda: _save(model | degrees, tmp_path), ranks, timeout_s=300)
    run_ranks(lambda: _load(model | other_degrees, tmp_path), other_ranks, timeout_s=300)


def test_what_the_images_python_has_saved_is_read(tmp_path):
    """Its pickles name the members of enums in another way (tests/trainer/older_python.py)."""

    def save() -> None:
        pickle_enums_by_name()
        _save(TIED, tmp_path)

    run_ranks(save, 2)
    assert b"getattr" in (tmp_path / "engine" / ".metadata").read_bytes(), "torch's own file has an enum"
    run_ranks(lambda: _load(TIED, tmp_path), 2)

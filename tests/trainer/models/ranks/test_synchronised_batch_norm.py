"""Batch norm over all ranks against torch's own over the whole batch in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.ranks import run_ranks
from trainer.models import build_model
from trainer.models.synchronised_batch_norm import SynchronisedBatchNorm, apply_synchronised_batch_norm
from trainer.settings.config import Config, ConfigError

ROWS, CHANNELS = 12, 3


def layer(momentum: float | None = 0.1, **settings: Any) -> nn.BatchNorm2d:
    torch.manual_seed(0)
    found = nn.BatchNorm2d(CHANNELS, momentum=momentum, **settings)
    if found.affine:
        nn.init.normal_(found.weight)
        nn.init.normal_(found.bias)
    return found


def images(step: int, offset: float = 0.0) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(step)
    # each row another mean: what one rank sees is not what all see
    return torch.randn(ROWS, CHANNELS, 4, 5, generator=drawn) + torch.arange(ROWS).view(-1, 1, 1, 1) + offset


def passes(norm: nn.Module, rows: slice, offset: float, dtype: torch.dtype) -> list[torch.Tensor]:
    """Of two steps: outputs, gradients of the input; the second step's of the parameters; the statistics."""
    found, norm = [], norm.to(dtype)
    for step in (1, 2):
        given = images(step, offset)[rows].to(dtype).requires_grad_()
        norm.zero_grad()
        answer = norm(given)
        wanted = torch.randn(ROWS, CHANNELS, 4, 5, generator=torch.Generator().manual_seed(9))[rows]
        (answer * wanted + answer.square() * 0.1).sum().backward()
        found += [answer.detach(), given.grad]
    parameters = [p.grad for p in norm.parameters()]
    return [*found, *parameters, norm.running_mean, norm.running_var]


@pytest.mark.parametrize(("dtype", "finest"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(
    ("settings", "offset"), [({}, 0.0), ({"momentum": None}, 0.0), ({"affine": False}, 0.0), ({}, 50.0)]
)
def test_it_is_batch_norm_over_the_whole_batch(settings, offset, ranks, dtype, finest, tmp_path):
    """In fp64 too, where nothing but a mistake is larger than rounding."""
    whole = passes(layer(**settings), slice(None), offset, dtype)

    def rank() -> None:
        import os

        import torch.distributed as dist

        if ranks > 1:
            dist.init_process_group("gloo")
        number, own = int(os.environ["RANK"]), ROWS // ranks
        norm = layer(**settings)
        assert apply_synchronised_batch_norm(norm) == 1 and type(norm) is SynchronisedBatchNorm
        found = passes(norm, slice(number * own, (number + 1) * own), offset, dtype)
        torch.save([*found, norm.num_batches_tracked], tmp_path / f"{number}.pt")

    run_ranks(rank, ranks)
    parts = [torch.load(Path(tmp_path / f"{number}.pt"), weights_only=True) for number in range(ranks)]
    assert all(int(part[-1]) == 2 for part in parts)
    tolerance = {"rtol": finest, "atol": finest * (1 + offset)}
    for i, expected in enumerate(whole[:4]):  # by rows
        torch.testing.assert_close(torch.cat([part[i] for part in parts]), expected, **tolerance)
    for i, expected in enumerate(whole[4:-2], 4):  # sums of the ranks
        together = sum(part[i] for part in parts)
        torch.testing.assert_close(together, expected, rtol=finest, atol=10 * finest * (1 + offset))
    for i in (-3, -2):
        assert all(torch.equal(part[i], parts[0][i]) for part in parts), "equal on every rank"
        torch.testing.assert_close(parts[0][i], whole[i + 1], rtol=finest, atol=finest)


def test_in_evaluation_it_is_torch_s_own():
    norm, theirs = layer(), layer()
    apply_synchronised_batch_norm(norm)
    norm(images(1)), theirs(images(1))
    assert torch.equal(norm.eval()(images(2)), theirs.eval()(images(2)))


def test_in_16_bits_the_statistics_are_fp32():
    norm, theirs = layer(), layer()
    apply_synchronised_batch_norm(norm)
    ours, plain = (n(images(1).bfloat16()) for n in (norm, theirs))
    assert ours.dtype == torch.bfloat16 and norm.running_mean.dtype == torch.float32
    torch.testing.assert_close(ours, plain, rtol=1e-2, atol=2e-2)
    torch.testing.assert_close(norm.running_var, theirs.running_var, rtol=1e-3, atol=1e-3)
    ours.sum().backward()
    assert norm.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_layer_whose_weights_and_statistics_have_16_bits(momentum):
    """As `bf16_native` holds them; against torch's own in fp32 with the same numbers."""
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        norm, given = layer(momentum).bfloat16().to(dtype), images(1).bfloat16().to(dtype).requires_grad_()
        if dtype == torch.bfloat16:
            assert apply_synchronised_batch_norm(norm)
        answer = norm(given)
        (answer * images(2).bfloat16()).sum().backward()
        tensors = [answer, given.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var]
        assert {tensor.dtype for tensor in tensors} == {dtype}
        found.append(tensors)
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).norm() <= 1e-2 * theirs.norm()


def test_one_value_per_channel_is_refused_as_by_torch():
    norm = layer()
    apply_synchronised_batch_norm(norm)
    with pytest.raises(ValueError, match="more than one value per channel"):
        norm(torch.ones(1, CHANNELS, 1, 1))


def build(**settings: Any) -> nn.Module:
    config = Config(run="r", batch_norm="synchronised", **settings)
    return build_model(config, image_size=32, channels=1, num_labels=5)


def test_every_layer_of_a_network_is_one():
    model = build(model="mobilenet", activation_checkpointing="blocks")
    kinds = {type(m).__name__ for m in model.modules() if "BatchNorm" in type(m).__name__}
    assert kinds == {"SynchronisedBatchNorm"}
    plain = build_model(Config(run="r", model="mobilenet"), image_size=32, channels=1, num_labels=5)
    assert list(model.state_dict()) == list(plain.state_dict())


def test_recomputed_blocks_count_a_micro_batch_once():
    found = []
    for recomputed in ("none", "blocks"):
        torch.manual_seed(3)
        model = build(model="mobilenet", activation_checkpointing=recomputed)
        model(torch.rand(4, 1, 32, 32)).square().sum().backward()
        found.append(
            {n: t for n, t in model.named_buffers()} | {n: p.grad for n, p in model.named_parameters()}
        )
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-4, atol=1e-5)


def test_a_compiled_block_holds_its_collectives():
    def rank() -> None:
        import torch.distributed as dist

        from trainer.engines.compilation import apply_compile

        dist.init_process_group("gloo")
        found = []
        for compiled in (False, True):
            torch.manual_seed(0)
            block = nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 3), layer(), nn.ReLU())
            apply_synchronised_batch_norm(block)
            if compiled:
                apply_compile([block], "aot_eager")
            rows = images(1)[dist.get_rank() :: 2]
            block(rows).square().sum().backward()
            found.append([*(p.grad for p in block.parameters()), block[1].running_mean])
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs)

    run_ranks(rank, 2)


def test_a_network_without_batch_norm_is_refused():
    with pytest.raises(ConfigError) as caught:
        build(model="vgg")
    assert caught.value.problems == ["TRAINER_BATCH_NORM=synchronised: vgg has no batch norm; leave it out"]


def test_a_folder_without_batch_norm_is_refused_when_it_is_built(tmp_path):
    from tests.trainer.models.conftest import write_model

    write_model(tmp_path, "vit")
    with pytest.raises(ConfigError, match="has no batch norm; leave it out"):
        build(model_path=str(tmp_path), image_size=16)


def test_images_keep_their_channels_side_by_side():
    """A GPU's kernel for these asks for other tensors than a CPU's; the stage gloo of `make gpu` tries it."""
    whole, ours = layer(), layer()
    apply_synchronised_batch_norm(ours)
    found = []
    for norm in (whole, ours):
        given = images(1).to(memory_format=torch.channels_last).detach().requires_grad_()
        norm(given).square().sum().backward()
        found.append([given.grad, *(p.grad for p in norm.parameters())])
    for ours_part, whole_part in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours_part, whole_part, rtol=1e-4, atol=1e-4)
    assert found[1][0].is_contiguous(memory_format=torch.channels_last)

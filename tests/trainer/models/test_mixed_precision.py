"""What bf16 and fp16 make of a model: types, what is kept for the backward pass, and the scale of the loss."""

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from stratlab_spec.exit_codes import NOT_FINITE, NotFinite, exit_code
from stratlab_spec.settings.config import Config
from tests.codes import refuses
from trainer.memory_estimation.storages import StorageWatch
from trainer.models.decoder_build import build_decoder
from trainer.models.mixed_precision import (
    LossScale,
    ProductLayerNorm,
    ProductLinear,
    ProductRmsNorm,
    apply_low_precision,
    is_product_weight,
)

BF16 = torch.bfloat16


def qwen(name="qwen_tiny"):
    model = build_decoder(Config(run="x", model=name, dataset="arithmetic", seq_len=16))
    inputs = torch.stack([torch.randint(0, 300, (2, 16)), torch.arange(16).expand(2, -1)], 1)
    return model, inputs, torch.randint(0, 300, (2, 16))


def saved(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[int, Tensor]:
    """What autograd keeps from forward to backward, by storage, but for the parameters themselves."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(inputs, labels)[0].backward()
    return kept


def test_no_copy_of_a_weight_and_no_fp32_copy_of_the_stream_is_kept():
    torch.manual_seed(0)
    model, inputs, labels = qwen()
    plain = copy.deepcopy(model)
    plain.products_dtype = BF16
    apply_low_precision(model, BF16)
    weights = [p.detach().to(BF16) for p in model.parameters() if p.ndim == 2]

    def copies(of: nn.Module) -> int:
        halves = [t for t in saved(of, inputs, labels).values() if t.dtype == BF16 and t.ndim == 2]
        return sum(any(torch.equal(t, w) or torch.equal(t, w.T) for w in weights) for t in halves)

    def streams(of: nn.Module) -> int:
        kept = saved(of, inputs, labels).values()
        return sum(t.dtype == torch.float32 and t.ndim == 3 and t.shape[-1] == 64 for t in kept)

    assert copies(model) == 0 < copies(plain)
    assert streams(model) <= 1 < streams(plain)
    model.zero_grad()
    known = sum(t.untyped_storage().nbytes() for t in saved(model, inputs, labels).values())
    model.zero_grad()
    with StorageWatch(1) as watch:  # whoever holds it: on some object's attribute it is none of autograd's
        loss, _ = model(inputs, labels)
        left = watch.timeline.moment(len(watch.timeline.events)).total
    assert left <= known + 4 * 2**10, (left, known, loss)


class _Alone(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, given: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=BF16):
            return self.layer(given)


@pytest.mark.parametrize(
    ("build", "kind", "dtype"),
    [(nn.LayerNorm, ProductLayerNorm, torch.float32), (Qwen2RMSNorm, ProductRmsNorm, BF16)],
)
def test_a_norm_is_that_of_fp32_rounded_once(build, kind, dtype):
    torch.manual_seed(0)
    plain = build(24)
    plain.weight.data.uniform_(0.5, 1.5)
    ours = copy.deepcopy(plain)
    ours.__class__ = kind
    given = (3 * torch.randn(2, 5, 24) + 1).to(dtype)
    a, b = (given.clone().requires_grad_() for _ in range(2))
    wanted, found = plain(a.float()), _Alone(ours)(b)
    assert found.dtype == BF16 and torch.equal(found, wanted.to(BF16))
    gradient = torch.randn_like(wanted).to(BF16)
    wanted.backward(gradient.float())
    found.backward(gradient)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(b.grad.float(), a.grad.float(), rtol=tolerance, atol=tolerance)
    for theirs, mine in zip(plain.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours(given.float()), plain(given.float()))  # without autocast as before


def test_what_is_kept_of_an_input_depends_on_what_needs_it():
    """Of a frozen weight nothing, as autograd does it; where it is gathered in 16 bits autograd does it itself."""

    def kept_of(given_needs: bool, weight_needs: bool) -> set[tuple[int, ...]]:
        linear = ProductLinear(3, 2, bias=False).requires_grad_(weight_needs)
        shapes = set()
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.add(tuple(t.shape)), lambda t: t)
        with hooks, torch.autocast("cpu", dtype=BF16):
            linear(torch.randn(4, 3, requires_grad=given_needs))
        return shapes

    assert kept_of(True, True) == {(4, 3), (2, 3)}
    assert kept_of(True, False) == {(2, 3)} and kept_of(False, True) == {(4, 3)}


def test_adapters_keep_as_much_whether_or_not_weights_are_gathered_in_16_bits():
    """ddp, single, zero1 and zero2 have fp32 weights in the layers, fsdp, hsdp, nd and zero3 16 bits."""
    config = Config(run="x", model="qwen_tiny", dataset="arithmetic", seq_len=16, lora_rank=4)
    sizes = []
    for gathered in (False, True):
        model = build_decoder(config)
        apply_low_precision(model, BF16)
        for block in model.blocks() if gathered else ():
            for owner in block.modules():
                if is_product_weight(owner, "weight"):
                    owner.weight.data = owner.weight.data.to(BF16)
        ids = torch.zeros((2, 2, 16), dtype=torch.int64)
        with torch.autocast("cpu", dtype=BF16):
            kept = saved(model, ids, ids[:, 0])
        sizes.append(sum(t.untyped_storage().nbytes() for t in kept.values()))
    assert sizes[0] == sizes[1], sizes


def test_a_loss_scale_that_cannot_fall_any_further_ends_the_run_with_a_sentence() -> None:
    scale = LossScale(True)
    for _ in range(16):
        scale.update(True)
    assert scale.scale == 1.0
    scale.update(False)
    with refuses(NotFinite, "SL-loss-scale-floor") as caught:
        scale.update(True)
    assert exit_code(caught.value) == NOT_FINITE
    unscaled = LossScale(False)
    unscaled.update(True)
    assert unscaled.scale == 1.0


def test_the_scale_grows_after_so_many_good_steps_and_no_earlier() -> None:
    scale = LossScale(True)
    first = scale.scale
    for _ in range(LossScale.INTERVAL - 1):
        scale.update(False)
    assert scale.scale == first
    scale.update(False)
    assert (scale.scale, scale.good_steps) == (2 * first, 0)
    scale.update(True)
    assert scale.scale == first

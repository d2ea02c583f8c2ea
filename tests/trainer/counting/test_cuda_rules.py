"""The rules themselves; that CUDA follows them is to be seen on a GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from trainer.memory_estimation.fake_cluster import as_on_cuda
from trainer.memory_estimation.storages import StorageWatch
from trainer.models.packing import Bounds, build_packing, causal_attention

ORIGINAL = F.scaled_dot_product_attention
ROWS, HEADS, TOKENS, DIM = 2, 4, 64, 16
ATTENTION = {"_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"}


@pytest.fixture
def watch():
    watch = StorageWatch(1)
    watch.phase = "forward"
    with FakeTensorMode(allow_non_fake_inputs=True), as_on_cuda(watch), watch:
        yield watch
    with torch.autocast("cpu", torch.bfloat16):  # taken back
        assert F.layer_norm(torch.ones(4, 8, dtype=torch.bfloat16), (8,)).dtype is torch.bfloat16
    assert F.scaled_dot_product_attention is ORIGINAL


def operators(watch):
    return {storage.label.operator for _, storage in watch.timeline.events}


def parts(dtype, kv_heads=HEADS):
    return [torch.empty(ROWS, heads, TOKENS, DIM, dtype=dtype) for heads in (HEADS, kv_heads, kv_heads)]


def test_norms_widen_under_autocast_only(watch):
    given = torch.empty(4, 8, dtype=torch.bfloat16)
    assert F.layer_norm(given, (8,), torch.ones(8, dtype=torch.bfloat16)).dtype is torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert F.layer_norm(given, (8,)).dtype is torch.float32
        assert given.softmax(-1).dtype is (given**2).dtype is torch.float32
        assert (given @ given.T).dtype is torch.bfloat16


def test_sixteen_bits_without_a_mask_go_to_flash_whatever_the_key_heads(watch):
    attended = F.scaled_dot_product_attention(*parts(torch.bfloat16, 2), is_causal=True, enable_gqa=True)
    assert attended.shape == (ROWS, HEADS, TOKENS, DIM)
    with torch.autocast("cpu", torch.bfloat16):  # casts before the kernel is chosen
        assert F.scaled_dot_product_attention(*parts(torch.float32)).dtype is torch.bfloat16
    assert operators(watch) & ATTENTION == {"_scaled_dot_product_flash_attention"}


def test_a_mask_becomes_a_bias_in_the_type_of_q_for_all_heads_at_once(watch):
    mask = torch.ones(ROWS, 1, TOKENS, TOKENS, dtype=torch.bool)
    kept = F.scaled_dot_product_attention(
        *[p.requires_grad_() for p in parts(torch.bfloat16)], attn_mask=mask
    )
    assert "_scaled_dot_product_efficient_attention" in operators(watch)
    held = watch.timeline.moment(len(watch.timeline.events)).by_cause()
    assert held["masks"] == ROWS * TOKENS * TOKENS * 2 and kept is not None


def pack(dtype):
    documents = torch.zeros(ROWS, TOKENS, dtype=torch.int64)
    return build_packing(documents, (0, 1), dtype, Bounds(documents=3, longest=TOKENS))


def test_packed_rows_in_sixteen_bits_keep_neither_mask_nor_repeated_heads(watch):
    sizes = [(ROWS, TOKENS, heads, DIM) for heads in (HEADS, 2, 2)]  # as a layer's products give them
    given = [torch.empty(s, dtype=torch.bfloat16, requires_grad=True).transpose(1, 2) for s in sizes]
    packing = pack(torch.bfloat16)
    before = len(watch.timeline.events)
    attended = causal_attention(*given, packing, 0.0, None)
    made = {storage.label.shape for _, storage in watch.timeline.events[before:]}
    assert attended.shape == (ROWS, HEADS, TOKENS, DIM)
    assert operators(watch) >= {"_varlen_attn"} and not any("attention" in name for name in operators(watch))
    output, per_token, without_dropout = (ROWS * TOKENS, HEADS, DIM), (HEADS, ROWS * TOKENS), (2,)
    assert made == {output, per_token, without_dropout}
    watch.phase = "backward"
    before = len(watch.timeline.events)
    gradients = torch.autograd.grad(attended.sum(), given)
    assert [gradient.shape for gradient in gradients] == [part.shape for part in given]
    assert not any(TOKENS in s.label.shape[-1:] for _, s in watch.timeline.events[before:])

"""What `selective` computes again: by the calls of a step, nothing computed."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from stratlab_spec.settings.config import Config
from trainer.memory_estimation.fake_cluster import as_on_cuda
from trainer.memory_estimation.storages import StorageWatch
from trainer.models.decoder import restore_buffers
from trainer.models.decoder_build import build_decoder
from trainer.models.mixed_precision import apply_low_precision


class Calls(TorchDispatchMode):
    """Of products and of the attention, by the operator's name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.found[name] += name in ("mm", "bmm", "addmm", "_grouped_mm") or "attn" in name
        return func(*args, **(kwargs or {}))


def calls_of_a_step(model: str, recomputed: str) -> Counter[str]:
    """Of packed rows in bf16, by the kernels of a GPU: forward and backward pass."""
    settings = {"dataset": "arithmetic", "seq_len": 64, "activation_checkpointing": recomputed}
    decoder = build_decoder(Config(run="r", model=model, packing=True, **settings), empty=True).train()
    apply_low_precision(decoder, torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True), as_on_cuda(StorageWatch(1)), Calls() as calls:
        decoder.to_empty(device="cpu")
        decoder.tie_weights()
        restore_buffers(decoder, "cpu")
        ids = torch.zeros((2, 2, 64), dtype=torch.int64)
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = decoder(ids, ids[:, 0])
        loss.backward()
    return +calls.found


@pytest.mark.parametrize(("model", "more"), [("qwen_tiny", set()), ("qwen_moe_tiny", {"_grouped_mm"})])
def test_selective_computes_no_product_and_no_attention_twice(model, more):
    kernels = {"mm", "_varlen_attn", "_varlen_attn_backward"} | more
    none, selective, blocks = (calls_of_a_step(model, kind) for kind in ("none", "selective", "blocks"))
    assert selective == none and kernels <= none.keys()
    for kernel in kernels - {"_varlen_attn_backward"}:
        assert blocks[kernel] > none[kernel], kernel

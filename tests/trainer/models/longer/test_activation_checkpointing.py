"""What is recomputed gives the same gradients with less memory; what `selective` computes again, by its calls."""

from collections import Counter

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import refuses
from tests.trainer.models.conftest import write_model
from trainer.memory_estimation.fake_cluster import as_on_cuda
from trainer.memory_estimation.storages import StorageWatch
from trainer.models import build_model
from trainer.models.decoder import restore_buffers
from trainer.models.decoder_build import build_decoder
from trainer.models.mixed_precision import apply_low_precision


def build(*, size=32, channels=1, empty=False, **values):
    return build_model(
        Config(run="r", **values), image_size=size, channels=channels, num_labels=5, empty=empty
    )


def saved_bytes(model, images) -> int:
    """Bytes that the forward pass keeps for the backward pass, each storage once, without the parameters."""
    kept: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    alive = []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)  # so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(images)
    return sum(kept.values())


def step(model, images):
    """Gradients and buffers after two passes in training mode."""
    model.train()
    for _ in range(2):
        torch.nn.functional.cross_entropy(model(images), torch.arange(len(images))).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return gradients, dict(model.named_buffers())


def compare(plain, recomputed, images):
    assert list(plain.state_dict()) == list(recomputed.state_dict())
    memory = saved_bytes(plain, images), saved_bytes(recomputed, images)
    assert memory[1] < 0.8 * memory[0], memory
    for before, after in zip(step(plain, images), step(recomputed, images), strict=True):
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            torch.testing.assert_close(after[name], tensor, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("name", ["cnn", "cnn_lstm"])
def test_equal_gradients_with_less_memory(name):
    values = {"model": name, "size": 16}
    compare(build(**values), build(**values, activation_checkpointing="blocks"), torch.rand(4, 1, 16, 16))


@pytest.mark.parametrize("kind", ["vit", "swin", "resnet"])
def test_so_have_models_of_transformers_and_batch_norm_s_statistics(tmp_path, images, kind):
    write_model(tmp_path, kind)
    values = {"model_path": str(tmp_path), "size": 16, "channels": 3}
    compare(build(**values), build(**values, activation_checkpointing="blocks"), images)
    if kind == "resnet":
        with refuses(ConfigError, "SL-batch-norm-compiled"):
            build(**values, activation_checkpointing="blocks", compile=True)


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

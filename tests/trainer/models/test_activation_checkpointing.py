from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.models.conftest import write_model
from trainer.counting.cuda_rules import as_on_cuda
from trainer.counting.storages import StorageWatch
from trainer.models import build_model
from trainer.models.decoder import restore_buffers
from trainer.models.decoder_build import build_decoder
from trainer.models.low_precision import apply_low_precision
from trainer.settings.config import Config, ConfigError

NAMES = ("vit_tiny", "cnn", "cnn_lstm", "ensemble", "mobilenet")


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
        logits = model(images)
        torch.nn.functional.cross_entropy(logits, torch.arange(len(images))).backward()
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


@pytest.mark.parametrize("name", NAMES)
def test_equal_gradients_and_statistics_with_less_memory(name):
    def build(**values):
        config = Config(run="r", model=name, **values)
        return build_model(config, image_size=32, channels=1, num_labels=5)

    compare(build(), build(activation_checkpointing="blocks"), torch.rand(4, 1, 32, 32))


@pytest.mark.parametrize("kind", ["vit", "swin", "convnext", "resnet"])
def test_a_model_of_transformers(tmp_path, images, kind):
    write_model(tmp_path, kind)

    def build(**values):
        config = Config(run="r", model_path=str(tmp_path), **values)
        return build_model(config, image_size=16, channels=3, num_labels=5)

    compare(build(), build(activation_checkpointing="blocks"), images)


def test_nothing_is_recomputed_in_an_evaluation():
    config = Config(run="r", model="cnn", activation_checkpointing="blocks")
    model = build_model(config, image_size=32, channels=1, num_labels=5).eval()
    calls = []
    model.stages[0][0].register_forward_hook(lambda *_: calls.append(1))
    model(torch.rand(1, 1, 32, 32)).sum().backward()
    assert len(calls) == 1
    model.train()
    model(torch.rand(1, 1, 32, 32)).sum().backward()
    assert len(calls) == 3


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
    """Of packed rows in bf16, by the kernels of a GPU: forward and backward pass, nothing computed."""
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


@pytest.mark.parametrize(
    ("model", "kernels"),
    [
        ("qwen_tiny", {"mm", "_varlen_attn", "_varlen_attn_backward"}),
        ("qwen_moe_tiny", {"mm", "_varlen_attn", "_varlen_attn_backward", "_grouped_mm"}),
    ],
)
def test_selective_computes_no_product_and_no_attention_twice(model, kernels):
    none, selective, blocks = (calls_of_a_step(model, kind) for kind in ("none", "selective", "blocks"))
    assert selective == none and kernels <= none.keys()
    for kernel in kernels - {"_varlen_attn_backward"}:
        assert blocks[kernel] > none[kernel], kernel


@pytest.mark.parametrize("name", ["vit_tiny", "cnn"])
def test_blocks_can_be_compiled(name):
    gradients = []
    for compiled in (False, True):
        config = Config(run="r", model=name, activation_checkpointing="blocks", compile=compiled)
        model = build_model(config, image_size=32, channels=1, num_labels=5)
        for block in model.blocks() if compiled else ():
            block.compile(backend="aot_eager")
        model(torch.ones(2, 1, 32, 32)).square().sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*gradients)
    torch._dynamo.reset()


def test_batch_norm_cannot_be_compiled_and_recomputed(tmp_path):
    write_model(tmp_path, "resnet")
    both = {"activation_checkpointing": "blocks", "compile": True}
    for values in ({"model": "mobilenet"}, {"model_path": str(tmp_path)}):
        config = Config(run="r", **values, **both)
        with pytest.raises(ConfigError) as caught:
            build_model(config, image_size=32, channels=3, num_labels=5)
        assert caught.value.problems == [
            "TRAINER_COMPILE=true, TRAINER_ACTIVATION_CHECKPOINTING=blocks: not both with "
            f"{config.model_name}, which has "
            "batch norm (torch.compile takes no such recomputation)"
        ]


def test_vgg_recomputes_stages():
    config = Config(run="r", model="vgg", activation_checkpointing="blocks")
    model = build_model(config, image_size=32, channels=1, num_labels=5, empty=True)
    plain = build_model(Config(run="r", model="vgg"), image_size=32, channels=1, num_labels=5, empty=True)
    assert [len(list(block.children())) for block in model.blocks()] == [5, 5, 7, 7, 7, 0, 0]
    images = torch.rand(4, 1, 32, 32, device="meta")

    def saved(each) -> int:
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(1) or t, lambda t: t):
            each(images)
        return len(sizes)

    assert saved(model) < saved(plain) / 2

import json

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageClassification

from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes
from tests.trainer.models.conftest import write_model
from trainer.models import build_model
from trainer.models.lora import save_adapter


def settings(model="vit_tiny", **values) -> Config:
    named = {} if "model_path" in values else {"model": model}
    return Config(run="r", **{"lora_rank": 4, **named, **values})


def build(*, size=32, channels=3, labels=5, empty=False, **values):
    return build_model(settings(**values), image_size=size, channels=channels, num_labels=labels, empty=empty)


def trained(model, std=0.3):
    """Adapters and head as after some training: B is not zero any more."""
    torch.manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=std)
    return model.eval()


def adapted_layers(model) -> set[str]:
    return {name.split(".lora_")[0] for name, _ in model.named_parameters() if ".lora_" in name}


def test_vit_base_with_rank_16_trains_a_little_over_a_million():
    model = build(model="vit_base", lora_rank=16, size=224, labels=10, empty=True)
    trainable = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    adapters = sum(n for name, n in trainable.items() if ".lora_" in name)
    assert adapters == 12 * 4 * 2 * 16 * 768 == 1_179_648  # q, k, v, o of twelve layers
    assert sum(trainable.values()) == adapters + 7690  # and the head
    assert sum(p.numel() for p in model.parameters()) - adapters == 85_806_346


def test_only_adapters_and_the_head_get_gradients_and_flops_leave_those_of_frozen_weights_out():
    plain, model = build(lora_rank=0, empty=True), build(activation_checkpointing="blocks")
    model(torch.rand(2, 3, 32, 32)).square().sum().backward()
    moved = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert {"hf.classifier.weight", "hf.vit.layers.0.attention.q_proj.lora_B.default.weight"} <= moved
    assert all(".lora_B." in name or "classifier" in name for name in moved)  # A waits for B to leave zero
    weights, products = plain.forward_flops
    assert (products, plain.flops_per_sample) == (4 * 65**2 * 64 * 4, 3 * (weights + products))
    assert model.flops_per_sample == 2 * weights + 3 * products


@pytest.mark.parametrize("kind", ["vit", "swin"])
def test_attention_is_found_and_the_adapter_loads_outside(tmp_path, images, kind):
    write_model(tmp_path / "base", kind)
    values = {"model_path": str(tmp_path / "base"), "init": "pretrained"}
    model = trained(build(size=16, labels=9, **values))
    assert len(adapted_layers(model)) == 4 * 2  # of two layers
    save_adapter(model.state_dict(), model, settings(**values), tmp_path / "adapter")
    base = AutoModelForImageClassification.from_pretrained(
        tmp_path / "base", num_labels=9, ignore_mismatched_sizes=True
    )
    outside = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert torch.equal(outside(pixel_values=images).logits, model(images))
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert len(tensors) == 2 * 8 + 2 and all(t.numel() > 0 for t in tensors.values())
    saved = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == str(tmp_path / "base")
    assert saved["modules_to_save"] == ["classifier"] and saved["r"] == 4 and saved["lora_alpha"] == 16.0
    # what a sharded module holds of a parameter that lies elsewhere is not written
    with pytest.raises(AssertionError):
        save_adapter({n: torch.empty(0) for n in model.state_dict()}, model, settings(**values), tmp_path)


@pytest.mark.parametrize(
    ("name", "targets", "adapted"),
    [
        ("cnn_lstm", "", 3 + 2),
        ("vgg", "", 13 + 2),
        ("resnet", "", 53),
        ("mobilenet", "", 48),  # no grouped convolution
        ("resnet", "conv2", 16),
        ("ensemble", "0", 9),
    ],
)
def test_without_attention_products_but_the_head_get_adapters(name, targets, adapted):
    model = build(model=name, lora_targets=targets, empty=True)
    layers = adapted_layers(model)
    assert len(layers) == adapted
    assert {getattr(model.get_submodule(layer), "groups", 1) for layer in layers} == {1}
    others = {n for n, p in model.named_parameters() if p.requires_grad and ".lora_" not in n}
    heads = {f"{model.core}.{head}".strip(".") for head in model.heads}
    assert {n.rpartition(".")[0] for n in others} == heads
    assert model.flops_per_sample == 2 * model.forward_flops.weights


def test_targets_that_do_not_exist_are_all_named():
    with pytest.raises(ConfigError) as caught:
        build(lora_targets="q_proj,qq,classifier", empty=True)
    absent, head = caught.value.problems
    assert find_codes(absent) == ["SL-lora-target-absent"] and "'qq'" in absent and "k_proj, o_proj" in absent
    assert find_codes(head) == ["SL-lora-target-head"] and "'classifier'" in head

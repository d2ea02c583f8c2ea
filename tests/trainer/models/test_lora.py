from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.models.conftest import SMALL, write_model
from trainer.models import build_model
from trainer.models.lora import save_adapter
from trainer.record.provenance import hash_weights
from trainer.settings.config import Config, ConfigError


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


def test_vit_base_with_rank_16_trains_a_little_over_a_million():
    model = build(model="vit_base", lora_rank=16, size=224, labels=10, empty=True)
    trainable = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    adapters = sum(n for name, n in trainable.items() if ".lora_" in name)
    assert adapters == 12 * 4 * 2 * 16 * 768 == 1_179_648  # q, k, v, o of twelve layers
    assert sum(trainable.values()) == adapters + 7690  # and the head
    assert sum(p.numel() for p in model.parameters()) - adapters == 85_806_346


def test_it_starts_as_the_base_and_depends_on_the_seed():
    plain, adapted, images = build(lora_rank=0), build(), torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(adapted(images), plain(images), rtol=0, atol=1e-6)
    down = {n: p for n, p in adapted.named_parameters() if "lora_A" in n}
    assert len(down) == 16 and all(p.std() > 0 for p in down.values())
    torch.rand(3)
    assert hash_weights(adapted) == hash_weights(build()) != hash_weights(build(seed=1))


def test_adapters_are_the_same_whatever_the_base_drew_before(tmp_path):
    write_model(tmp_path, "vit")
    drawn = []
    for init in ("scratch", "pretrained"):
        model = build(model_path=str(tmp_path), init=init, size=16)
        drawn.append(model.hf.vit.layers[0].attention.q_proj.lora_A.default.weight)
    assert torch.equal(*drawn)


def test_only_adapters_and_the_head_get_gradients():
    model = build(activation_checkpointing="blocks")
    model(torch.rand(2, 3, 32, 32)).square().sum().backward()
    moved = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert (
        "hf.classifier.weight" in moved and "hf.vit.layers.0.attention.q_proj.lora_B.default.weight" in moved
    )
    assert all(".lora_B." in name or "classifier" in name for name in moved)  # A waits for B to leave zero


def test_flops_leave_out_the_gradients_of_frozen_weights():
    plain, adapted = build(lora_rank=0), build()
    weights, products = plain.forward_flops
    assert products == 4 * 65**2 * 64 * 4
    assert plain.flops_per_sample == 3 * (weights + products)
    assert adapted.flops_per_sample == 2 * weights + 3 * products


@pytest.mark.parametrize("kind", ["vit", "deit", "beit", "dinov2", "swin"])
def test_attention_is_found_and_the_adapter_loads_outside(tmp_path, images, kind):
    """`peft` and `transformers` alone give the same logits from the files, with a head of another size."""
    import peft
    from transformers import AutoModelForImageClassification

    write_model(tmp_path / "base", kind)
    values = {"model_path": str(tmp_path / "base"), "init": "pretrained"}
    model = trained(build(size=16, labels=9, **values))
    adapted = {name.split(".lora_")[0] for name, _ in model.named_parameters() if ".lora_" in name}
    layers = 2 if kind != "swin" else 1 + 1
    assert len(adapted) == 4 * layers, adapted
    save_adapter(model.state_dict(), model, settings(**values), tmp_path / "adapter")

    base = AutoModelForImageClassification.from_pretrained(
        tmp_path / "base", num_labels=9, ignore_mismatched_sizes=True
    )
    outside = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert torch.equal(outside(pixel_values=images).logits, model(images))
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert len(tensors) == 2 * 4 * layers + 2 and all(t.numel() > 0 for t in tensors.values())
    saved = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == str(tmp_path / "base")
    assert saved["modules_to_save"] == ["classifier"] and saved["r"] == 4 and saved["lora_alpha"] == 16.0


def test_tensors_without_content_are_not_written(tmp_path):
    """What a sharded module holds of a parameter that lies elsewhere."""
    model = build()
    state = {name: torch.empty(0) for name in model.state_dict()}
    with pytest.raises(AssertionError, match="not the whole state"):
        save_adapter(state, model, settings(), tmp_path)


@pytest.mark.parametrize("name", ["cnn", "cnn_lstm", "ensemble", "resnet"])
def test_named_layers_of_models_without_attention(name):
    target = "conv2" if name == "resnet" else "0"
    model = build(model=name, lora_targets=target)
    adapters = [n for n, p in model.named_parameters() if p.requires_grad and ".lora_" in n]
    assert len(adapters) == 2 * {"cnn": 3, "cnn_lstm": 3, "ensemble": 9, "resnet": 16}[name]
    heads = tuple(f"{model.core}.{h}".strip(".") for h in model.heads)
    others = [n for n, p in model.named_parameters() if p.requires_grad and ".lora_" not in n]
    assert others and all(n.startswith(heads) for n in others)
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "adapted"),
    [("cnn", 3), ("cnn_lstm", 3 + 2), ("ensemble", 9), ("vgg", 13 + 2), ("resnet", 53), ("mobilenet", 48)],
)
def test_without_attention_every_product_but_the_head_gets_adapters(name, adapted):
    model = build(model=name, empty=True)
    layers = {n.split(".lora_")[0] for n, _ in model.named_parameters() if ".lora_" in n}
    assert len(layers) == adapted
    assert {getattr(model.get_submodule(layer), "groups", 1) for layer in layers} == {1}
    trained = {n for n, p in model.named_parameters() if p.requires_grad and ".lora_" not in n}
    heads = {f"{model.core}.{head}".strip(".") for head in model.heads}
    assert {n.rpartition(".")[0] for n in trained} == heads
    assert model.flops_per_sample == 2 * model.forward_flops.weights


@pytest.mark.parametrize("name", ["mobilenet", "cnn_lstm"])
def test_adapted_convolutions_start_as_the_base(name):
    plain, adapted, images = build(model=name, lora_rank=0), build(model=name), torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(adapted.eval()(images), plain.eval()(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["mobilenet", "resnet", "cnn_lstm"])
def test_an_adapter_of_convolutions_loads_outside(tmp_path, name):
    """`peft` alone gives the same logits, batch norm's statistics included, which have moved in training."""
    import peft

    base = build(model=name, lora_rank=0)
    model = build(model=name)
    model.train()(torch.rand(4, 3, 32, 32))
    trained(model, std=0.02)
    save_adapter(model.state_dict(), model, settings(name), tmp_path / "adapter")
    outside = peft.PeftModel.from_pretrained(base.network(), tmp_path / "adapter").eval()
    images = torch.rand(2, 3, 32, 32)
    theirs = outside(images)
    torch.testing.assert_close(theirs, model(images), rtol=1e-5, atol=1e-4)


def test_merged_convolutions_are_the_adapted_ones():
    from trainer.models.merged import merge_adapters

    model = trained(build(model="mobilenet"), std=0.02)
    plain = build(model="mobilenet", lora_rank=0)
    plain.network().load_state_dict(merge_adapters(model, model.state_dict(), settings("mobilenet")))
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(plain.eval()(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["convnext", "resnet"])
def test_a_folder_without_attention_gets_them_in_its_convolutions(tmp_path, kind):
    assert kind in SMALL
    write_model(tmp_path / "base", kind)
    model = build(model_path=str(tmp_path / "base"), init="scratch")
    layers = {n.split(".lora_")[0] for n, _ in model.named_parameters() if ".lora_" in n}
    assert layers and all(not n.startswith(tuple(f"hf.{head}" for head in model.heads)) for n in layers)


def test_targets_that_do_not_exist_are_all_named():
    with pytest.raises(ConfigError) as caught:
        build(lora_targets="q_proj,qq,classifier")
    assert caught.value.problems == [
        "TRAINER_LORA_TARGETS='qq': no linear or ungrouped convolution layer is called so, expected some of "
        "classifier, fc1, fc2, k_proj, o_proj, projection, q_proj, v_proj",
        "TRAINER_LORA_TARGETS='classifier': is the head, which is trained whole anyway",
    ]


def test_grouped_convolutions_get_no_adapters():
    names = [n for n, _ in build(model="mobilenet", lora_targets="0").named_parameters() if ".lora_A" in n]
    model = build(model="mobilenet", lora_rank=0)
    kinds = {model.get_submodule(name.split(".lora_")[0]).groups for name in names if "features" in name}
    assert kinds == {1}

"""The shape of google/vit-base-patch16-224 as a folder in Hugging Face format, loaded without a network."""

from __future__ import annotations

import pytest
import torch

from trainer.models import build_model
from trainer.settings.config import Config


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """86 million random weights in the format of the hub, with its head of 1000 classes; no layer's are zero."""
    from transformers import ViTConfig, ViTForImageClassification

    folder = tmp_path_factory.mktemp("vit-base-patch16-224")
    with torch.device("meta"):
        hf = ViTForImageClassification(ViTConfig(num_labels=1000))
    noise = torch.randn(2**20, generator=torch.Generator().manual_seed(3)) * 0.02
    state = {}
    for number, (name, tensor) in enumerate(hf.state_dict().items()):
        repeated = noise.roll(7919 * number).repeat(tensor.numel() // 2**20 + 1)
        state[name] = repeated[: tensor.numel()].view(tensor.shape).clone()
    hf.load_state_dict(state, assign=True)
    hf.save_pretrained(folder)
    image = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        return folder, image, hf.eval().vit(pixel_values=image).last_hidden_state


@pytest.mark.parametrize("labels", [10, 100])
def test_the_body_s_logits_are_those_of_transformers(checkpoint, labels):
    folder, image, body = checkpoint
    config = Config(run="r", model_path=str(folder), init="pretrained")
    ours = build_model(config, image_size=224, channels=3, num_labels=labels).eval()
    seen = []
    ours.hf.vit.register_forward_hook(lambda module, given, answer: seen.append(answer.last_hidden_state))
    with torch.no_grad():
        logits = ours(image)
        assert torch.equal(seen[0], body)
        assert torch.equal(logits, ours.hf.classifier(body[:, 0])) and logits.shape == (1, labels)
    assert 1e-3 < ours.hf.classifier.weight.std() < 0.1
    assert sum(p.numel() for p in ours.parameters()) == 85_798_656 + labels * 769
    assert ours.flops_per_sample / 1e9 == pytest.approx(105.4, abs=0.1)

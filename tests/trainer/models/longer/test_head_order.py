"""The head of weights is read by the names of its classes: the same logits by name, whatever the order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stratlab_spec.models.model_specs import PLAIN
from stratlab_spec.settings.config import Config
from tests.trainer.models.conftest import write_model
from trainer.models import build_model
from trainer.models.export import export_model

KNOWN, WANTED, OTHERS = ["ape", "bee", "cow"], ["cow", "ape", "bee"], ["ape", "bee", "dog"]
EDGE = 32


def build(config: Config, names: list[str], **more):
    shape = {"image_size": EDGE, "channels": 3, "num_labels": len(names)}
    return build_model(config, **shape, class_names=names, **more).eval()


def logits(model) -> torch.Tensor:
    torch.manual_seed(0)
    with torch.no_grad():
        return model.predict(torch.rand(2, 3, EDGE, EDGE))


def export(folder: Path, name: str) -> tuple[Config, torch.Tensor]:
    """Settings that load weights which know KNOWN, and their logits."""
    config = Config(run="r", model=name, seed=5)
    model = build(config, KNOWN)
    facts = {"image_size": EDGE, "channels": 3, "num_labels": 3, "class_names": KNOWN}
    export_model(model, model.state_dict(), config, facts | {"preprocessing": PLAIN}, folder)
    return Config(run="r", model_path=str(folder), init="pretrained"), logits(model)


@pytest.mark.parametrize("name", ["vit_tiny", "ensemble"])
def test_another_order_gives_the_same_logits_by_name(tmp_path, name):
    config, expected = export(tmp_path, name)
    for whole in (False, True):
        found = logits(build(config, WANTED, whole=whole))
        assert torch.allclose(found, expected[:, [2, 0, 1]], atol=1e-6)
    assert torch.allclose(logits(build(config, KNOWN)), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["vit_tiny", "cnn"])
def test_other_classes_get_the_head_that_a_fresh_model_of_their_number_would(tmp_path, name):
    config, _ = export(tmp_path, name)
    found, same = build(config, OTHERS), build(config, KNOWN).network().state_dict()
    for key, tensor in found.network().named_parameters():
        in_body = not key.startswith(tuple(found.heads))
        assert torch.equal(tensor, same[key]) == (in_body or not tensor.any()), key
    assert torch.equal(logits(found), logits(build(config, OTHERS))), "by the seed"


@pytest.mark.parametrize("kind", ["deit", "resnet"])
def test_weights_from_elsewhere_are_mapped_too_and_keep_their_order_without_names(tmp_path, kind):
    write_model(tmp_path, kind, num_labels=3, id2label=dict(enumerate(KNOWN)), image_size=EDGE)
    config = Config(run="r", model_path=str(tmp_path), init="pretrained")
    first, second = (logits(build(config, names)) for names in (KNOWN, WANTED))
    assert torch.allclose(second, first[:, [2, 0, 1]], atol=1e-6) and not torch.allclose(second, first)
    content = json.loads((tmp_path / "config.json").read_text())
    del content["id2label"], content["label2id"]
    (tmp_path / "config.json").write_text(json.dumps(content | {"num_labels": 3}))
    assert torch.equal(logits(build(config, WANTED)), first)

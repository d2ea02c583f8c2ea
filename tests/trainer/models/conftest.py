"""Small models in Hugging Face format, written to a folder by transformers itself."""

from pathlib import Path
from typing import Any

import pytest
import torch

SMALL: dict[str, dict[str, Any]] = {
    "vit": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
    "deit": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
    "swin": {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2},
    "convnext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "dinov2": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
}
"""Name in transformers -> the smallest settings that its configuration takes."""
# where transformers has several models for the purpose
ARCHITECTURES = {"deit": "DeiTForImageClassification", "levit": "LevitForImageClassification"}


def small_settings(kind: str, **changes: Any) -> Any:
    from transformers import AutoConfig

    sizes = {"image_size": 16, "patch_size": 4} if kind in ("vit", "deit", "swin", "dinov2") else {}
    settings = AutoConfig.for_model(kind, **{**SMALL.get(kind, {}), **sizes, "num_labels": 5, **changes})
    settings.architectures = [ARCHITECTURES.get(kind, "")]
    return settings


def write_model(folder: Path, kind: str, seed: int = 7, **changes: Any) -> Any:
    """Writes a model with random weights (no layer's are zero) and returns it."""
    from transformers import AutoModelForImageClassification

    torch.manual_seed(seed)
    hf = AutoModelForImageClassification.from_config(small_settings(kind, **changes))
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.normal_(std=0.1)
    hf.save_pretrained(folder)
    return hf.eval()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))

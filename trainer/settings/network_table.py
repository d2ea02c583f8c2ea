"""Every image network that is no vision transformer, one row each; those have their shapes in shapes/model_shapes.py.

A new one takes a row here and a file in trainer/models; `make schema` writes its line of the README. No column has a
default, so that what is forgotten is an error at import.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class NetworkRow:
    """One network."""

    builder: str
    """`module:function` in trainer/models: (config, image_size, channels, num_labels) -> ImageClassifier. "" =
    torchvision's (models/torchvision_networks.py)."""
    image: int
    """Pixels of an edge, where nobody asks for others."""
    step: int
    """The edge must be a multiple of it."""
    smallest: int
    """Fewest pixels of an edge."""
    what: str
    """It is, as the README says it."""


def _of_torchvision(what: str) -> NetworkRow:
    """All four halve an image five times."""
    return NetworkRow(builder="", image=224, step=1, smallest=32, what=f"{what}, torchvision's")


NETWORKS: dict[str, NetworkRow] = {
    # ours halve an image three times; cnn_lstm does so with windows of half its width
    "cnn": NetworkRow(builder="cnn:build", image=32, step=8, smallest=8, what="a small CNN"),
    "mobilenet": _of_torchvision("MobileNet v3 large"),
    "efficientnet": _of_torchvision("EfficientNet b0"),
    "vgg": _of_torchvision("VGG 16"),
    "resnet": _of_torchvision("ResNet 50"),
    "cnn_lstm": NetworkRow(
        builder="cnn_lstm:build", image=32, step=16, smallest=16, what="a CNN per frame under an LSTM"
    ),
    "ensemble": NetworkRow(
        builder="ensemble:build",
        image=32,
        step=8,
        smallest=8,
        what="several members with one average of logits",
    ),
}
FINETUNED = "_finetuned"
"""End of a name: the network of the row before it with its published weights and a new head."""
FINETUNED_NETWORKS = {f"{name}{FINETUNED}": name for name, row in NETWORKS.items() if not row.builder}
"""Only what torchvision has published can be fine-tuned by name."""


def write_rows(text: str) -> str:
    """A README with the rows of NETWORKS in its table of models: between the transformers and what is fine-tuned."""
    lines = text.splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if line.startswith("| `vit_")) + 1
    last = next(i for i, line in enumerate(lines) if line.startswith("|") and f"{FINETUNED}`" in line)
    lines[first:last] = [f"| `{name}` | {row.what} |\n" for name, row in NETWORKS.items()]
    return "".join(lines)


if __name__ == "__main__":  # make schema
    readme = Path(sys.argv[1])
    readme.write_text(write_rows(readme.read_text()))

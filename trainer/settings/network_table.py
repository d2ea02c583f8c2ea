"""Every image network that is no vision transformer, one row each; those have their shapes in shapes/model_shapes.py.

A new one takes a row here and a file in trainer/models. No column has a default, so that what is forgotten is an error
at import.
"""

from __future__ import annotations

from dataclasses import dataclass


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


def _of_torchvision() -> NetworkRow:
    """All four halve an image five times."""
    return NetworkRow(builder="", image=224, step=1, smallest=32)


NETWORKS: dict[str, NetworkRow] = {
    # ours halve an image three times; cnn_lstm does so with windows of half its width
    "cnn": NetworkRow(builder="cnn:build", image=32, step=8, smallest=8),
    "mobilenet": _of_torchvision(),
    "efficientnet": _of_torchvision(),
    "vgg": _of_torchvision(),
    "resnet": _of_torchvision(),
    "cnn_lstm": NetworkRow(builder="cnn_lstm:build", image=32, step=16, smallest=16),
    "ensemble": NetworkRow(builder="ensemble:build", image=32, step=8, smallest=8),
}
FINETUNED = "_finetuned"
"""End of a name: the network of the row before it with its published weights and a new head."""
FINETUNED_NETWORKS = {f"{name}{FINETUNED}": name for name, row in NETWORKS.items() if not row.builder}
"""Only what torchvision has published can be fine-tuned by name."""

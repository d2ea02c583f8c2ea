"""The edge of images that each named network has where `image_size` is 0, for tools that may not import the trainer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from trainer.settings.network_table import FINETUNED_NETWORKS, NETWORKS
from trainer.shapes.model_shapes import VIT

IMAGE_SIZES = {
    **{name: shape.image for name, shape in VIT.items()},
    **{name: row.image for name, row in NETWORKS.items()},
    **{name: NETWORKS[body].image for name, body in FINETUNED_NETWORKS.items()},
}


def describe_for_tools() -> str:
    """JSON: name of a model -> pixels."""
    return json.dumps(IMAGE_SIZES, indent=1) + "\n"


if __name__ == "__main__":  # make schema
    Path(sys.argv[1]).write_text(describe_for_tools())

"""What the rules of trainer/shapes/sizes.py ask of each preset, for tools that may not import the trainer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from trainer.shapes.decoder_shapes import SHAPES
from trainer.shapes.model_shapes import VIT
from trainer.shapes.sizes import splits_hidden

SIZE_RULES: dict[str, dict[str, Any]] = {
    **{name: {"hidden": shape.hidden, "heads": shape.heads, "step": 1} for name, shape in VIT.items()},
    **{
        name: {
            "hidden": shape.hidden,
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "step": 2 if splits_hidden(shape) else 0,
        }
        for name, shape in SHAPES.items()
    },
}
"""`step`: of which times its heads the hidden size must be a multiple; 0 = of nothing."""


def describe_for_tools() -> str:
    """JSON: name of a preset -> its own sizes, and the rule."""
    return json.dumps(SIZE_RULES, indent=1) + "\n"


if __name__ == "__main__":  # make schema
    Path(sys.argv[1]).write_text(describe_for_tools())

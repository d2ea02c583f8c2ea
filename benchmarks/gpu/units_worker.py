"""`trainer.worker` under ZeRO-3 that gathers a whole block at once, as FSDP does, instead of single modules.

DeepSpeed's hooks then run once per block. Its own interface for that: `set_z3_leaf_modules`.
"""

from __future__ import annotations

import sys
from typing import Any

import deepspeed
from deepspeed.utils import set_z3_leaf_modules

from trainer import worker

BLOCKS = ("Qwen2DecoderLayer", "ViTLayer")

_initialize = deepspeed.initialize


def initialize(*arguments: Any, model: Any, **options: Any) -> Any:
    """Do the same as DeepSpeed's, with blocks as leaves."""
    kinds = {type(module) for module in model.modules() if type(module).__name__ in BLOCKS}
    assert kinds, "no block of a known kind"
    set_z3_leaf_modules(model, [*kinds])
    return _initialize(*arguments, model=model, **options)


if __name__ == "__main__":
    deepspeed.initialize = initialize
    sys.exit(worker.main())

"""Ranks that run out of an accelerator's memory where a test says so, under the real launcher."""

import json
from pathlib import Path

CONTENT = """
import json, os, sys

if any(part == "trainer.worker" for part in sys.orig_argv):
    import torch
    from trainer.engines.torch_engine import TorchEngine
    from trainer.strategies.zero import DeepSpeedEngine

    planted = [tuple(each) for each in json.loads(os.environ["PLANTED_MEMORY"])]
    rungs = len(json.loads(os.environ.get("STRATLAB_RUNGS", "[]")))
    for engine in (TorchEngine, DeepSpeedEngine):
        def train_step(self, batch, lr, step=engine.train_step):
            self.steps_seen = getattr(self, "steps_seen", 0) + 1
            if (rungs, self.steps_seen, int(os.environ["RANK"])) in planted:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return step(self, batch, lr)
        engine.train_step = train_step
"""


def plant(folder: Path, *places: tuple[int, int, int]) -> dict[str, str]:
    """For the environment of the launcher."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(CONTENT)
    return {"PYTHONPATH": str(folder), "PLANTED_MEMORY": json.dumps(places)}

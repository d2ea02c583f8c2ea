"""The cells of the matrix: every image network of the sources under every strategy that trains images.

And two rows beside them: adapters on convolutions, and batch norm over the micro-batches of all processes.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stratlab_spec.settings.config import Config
from stratlab_spec.strategies import STRATEGIES

STEPS, MANY_STEPS = 60, 150
"""The second for networks that are cheap, and slow to learn without batch norm."""
SHARED: dict[str, Any] = {
    "dataset": "digits",
    "image_size": 32,
    "global_batch_size": 32,
    "micro_batch_size": 8,  # one for all world sizes: then parity holds with batch norm too (models/batch_norm.py)
    "log_every": 5,
    "profile_steps": 0,
    "precision": "fp32",
    "optimizer": "adamw",
    "eps": 1e-6,  # at 1e-8 rounding errors of gradients that are nothing but that become steps of full length
    "clip_norm": 1.0,
}
MODELS: dict[str, dict[str, Any]] = {
    "cnn": {"lr": 1e-3, "steps": MANY_STEPS},
    "mobilenet": {"lr": 1e-3, "steps": STEPS, "warmup_steps": 20},
    "efficientnet": {"lr": 5e-4, "steps": STEPS, "warmup_steps": 20},
    "vgg": {"lr": 1e-4, "steps": 84},  # at 66 its loss is on its way down, and noisy; a checkpoint has 1.6 GB
    "resnet": {
        "lr": 2e-4, "steps": STEPS, "warmup_steps": 30, "micro_batch_size": 16, "global_batch_size": 64,
    },
    "cnn_lstm": {"lr": 1e-3, "steps": MANY_STEPS},
    "ensemble": {"lr": 1e-3, "steps": MANY_STEPS},
    "mobilenet_finetuned": {"lr": 1e-3, "steps": STEPS, "warmup_steps": 20},
    "cnn_lora": {"model": "cnn", "init": "scratch", "lora_rank": 8, "lr": 5e-3, "steps": 240},
    "mobilenet_synchronised": {
        "model": "mobilenet", "batch_norm": "synchronised", "lr": 1e-3, "steps": STEPS,
        "warmup_steps": 20,
    },
}  # fmt: skip
"""Warm-up where there is batch norm over so few samples: it enlarges rounding, the more the longer the first updates
are (rounding.py, docs/decisions/numerics.md). ResNet-50 ends at 1 x 1 pixels: over 8 values no rate kept parity."""
EXACT = ("resnet", "mobilenet_synchronised")
"""Whose first steps are compared in fp64 (running.py): in fp32 rounding carries a value of theirs over a kink."""
UNDIVIDED = ("vgg",)
"""Whose processes take their share of a batch at once: 0.5 GB of gradients were added up in each micro-batch, minutes
in all. Without batch norm parity does not ask for micro-batches of one size."""
SMALL = ("cnn", "cnn_lstm", "ensemble", "cnn_lora")
SMALLER_THRESHOLD = 10_000
"""Elements, for these: their largest tensors have fewer than DeepSpeed's own 100,000, and nothing would be gathered."""
RANKS = {"single": 1, "hsdp": 4, "zeropp": 4}
"""Else 2. hsdp is 2 x 2; zeropp has two nodes of two processes, so that its copy per node is not the whole model."""
PER_NODE = {"zeropp": 2}


@dataclass(frozen=True)
class Cell:
    model: str
    strategy: str

    @property
    def name(self) -> str:
        return f"{self.model} {self.strategy}"

    @property
    def world_size(self) -> int:
        return RANKS.get(self.strategy, 2)

    @property
    def per_node(self) -> int:
        return PER_NODE.get(self.strategy, self.world_size)

    @property
    def steps(self) -> int:
        return int(MODELS[self.model]["steps"])

    @property
    def checkpoint_every(self) -> int:
        """Steps between checkpoints, and between validations: a new best would be saved at other steps too."""
        return self.steps // 3

    @property
    def killed_at(self) -> int:
        return 2 * self.checkpoint_every + 1

    def settings(self) -> dict[str, Any]:
        found = {"model": self.model, "strategy": self.strategy, **SHARED, **MODELS[self.model]}
        found |= {"checkpoint_every": self.checkpoint_every, "evaluate_every": self.checkpoint_every}
        if self.model in SMALL and "persistent_elements" in STRATEGIES[self.strategy].knobs:
            found["persistent_elements"] = SMALLER_THRESHOLD
        if found.get("batch_norm") == "synchronised" or self.model in UNDIVIDED:
            found["micro_batch_size"] = found["global_batch_size"] // self.world_size
        if self.strategy == "hsdp":
            found |= {"dp_replicate": 2, "dp_shard": 2}
        return found

    @property
    def exact(self) -> bool:
        """Whether its first steps are also done in fp64."""
        return self.model in EXACT

    def config(self) -> Config:
        variables = self.variables(Path("results"))
        return Config.from_env({n: value for n, value in variables.items() if n.startswith("TRAINER_")})

    def threshold(self) -> int:
        """Elements below which DeepSpeed's stage 3 keeps a parameter of this network whole."""
        fields = Config.model_fields
        return SMALLER_THRESHOLD if self.model in SMALL else int(fields["persistent_elements"].default)

    def variables(self, results: Path) -> dict[str, str]:
        named = {f"TRAINER_{name.upper()}": str(value) for name, value in self.settings().items()}
        return named | {
            "TRAINER_RUN": self.strategy, "TRAINER_COMPARISON": self.model,
            "TRAINER_RESULTS": str(results), "STRATLAB_LAUNCHER": "test",
            "LOCAL_WORLD_SIZE": str(self.per_node),
        }  # fmt: skip

    def key(self, tree: str) -> str:
        """Changes with what is run, of which all that this module says is a part, and with the tree's state `tree`."""
        run = {name: getattr(self, name) for name in ("world_size", "per_node", "killed_at", "exact")}
        content: Mapping[str, Any] = asdict(self) | self.settings() | run | {"threshold": self.threshold()}
        return hashlib.sha256(json.dumps([content, tree], sort_keys=True).encode()).hexdigest()[:16]


def list_cells() -> list[Cell]:
    """By model; one process first, which the others are compared with."""
    strategies = [name for name in STRATEGIES if name != "nd"]
    assert strategies[0] == "single"
    return [Cell(model, strategy) for model in MODELS for strategy in strategies]

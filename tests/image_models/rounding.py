"""How far rounding alone drives a network's first steps apart, beside what a mistake in its gradients does.

    python -m tests.image_models.rounding                    # the networks with batch norm, a table and a result
    python -m tests.image_models.rounding efficientnet resnet

One process trains the first steps of a cell several times over: in fp64, from weights that are moved by 1e-7 (what
another order of sums does to fp32) and by 1e-10, and with a planted mistake (half of the micro-batches count half). If
what 1e-7 does is a thousand times what 1e-10 does, and is there in fp64, then it is the network that enlarges, and no
gradient is wrong. `warm` is the cell as it is, `cold` the same without its warm-up. Minutes; the result lies in
reports/rounding.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stratlab_spec.run_directory import write_json
from stratlab_spec.schedule import learning_rate
from stratlab_spec.settings.config import Config
from tests.image_models.cell import MODELS, Cell
from tests.image_models.found import AMONG, NORM_PARITY, PARITY
from trainer.data.batches import Share
from trainer.engines.torch_engine import build_optimizer
from trainer.tasks.image_task import ImageTask

RESULT = Path(__file__).resolve().parents[2] / "reports" / "rounding.json"
NETWORKS = ("cnn", "mobilenet", "efficientnet", "resnet")
"""The first has no batch norm."""
ROUNDING, FINER = 1e-7, 1e-10
FELT = 0.5
"""What the second half of the micro-batches counts in the planted mistake."""


@dataclass(frozen=True)
class Steps:
    """The first ones of a training: losses, norms of the gradients, and the whole first gradient."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    gradient: Tensor

    def apart(self, other: Steps) -> dict[str, Any]:
        """Largest relative differences, in the steps up to each; of the whole first gradient too."""
        return {
            "losses": [abs(a - b) / abs(b) for a, b in zip(self.losses, other.losses, strict=True)],
            "norms": [abs(a - b) / abs(b) for a, b in zip(self.norms, other.norms, strict=True)],
            "first_gradient": float((self.gradient - other.gradient).norm() / other.gradient.norm()),
        }


def read_config(model: str, warm: bool) -> Config:
    config = Cell(model, "single").config()
    return config if warm else config.model_copy(update={"warmup_steps": 0})


def train(
    config: Config, dtype: torch.dtype, moved_by: float = 0.0, felt: float = 1.0, steps: int = AMONG
) -> Steps:
    """The steps in one process, as its engine does them, but in any element type.

    Args:
        moved_by: each initial weight is multiplied by 1 +- at most so much.
        felt: factor of the second half of the micro-batches' gradients; not 1 is a mistake.
    """
    task = ImageTask(config, Share(0, 1), "cpu")
    task.start(0)
    model = task.build_model(empty=False).to(dtype)
    _move(model, moved_by)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = build_optimizer(config, parameters)
    losses, norms, first = [], [], torch.empty(0)
    for step in range(1, steps + 1):
        micro, total = task.next_batch(step).micro, 0.0
        for i, (images, labels) in enumerate(micro):
            logits = model.predict(images.to(dtype))
            loss = F.cross_entropy(logits, labels, reduction="sum") / config.global_batch_size
            (loss * (felt if i >= len(micro) // 2 else 1.0)).backward()
            total += float(loss.detach())
        if step == 1:
            first = torch.cat([p.grad.double().flatten() for p in parameters if p.grad is not None])
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, config.clip_norm)))
        losses.append(total)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step, config.steps)
        optimizer.step()
        optimizer.zero_grad()
    return Steps(tuple(losses), tuple(norms), first)


def measure(model: str, warm: bool) -> dict[str, Any]:
    """Of one network: {what was done to it: how far that drove it apart}, each from the same training without it."""
    config = read_config(model, warm)
    exact, single = (train(config, dtype) for dtype in (torch.float64, torch.float32))
    return {
        "fp32 for fp64": single.apart(exact),
        f"weights by {ROUNDING:.0e} in fp32": train(config, torch.float32, ROUNDING).apart(single),
        f"weights by {ROUNDING:.0e} in fp64": train(config, torch.float64, ROUNDING).apart(exact),
        f"weights by {FINER:.0e} in fp64": train(config, torch.float64, FINER).apart(exact),
        "a mistake in fp64": train(config, torch.float64, felt=FELT).apart(exact),
    }


def _move(model: nn.Module, by: float) -> None:
    drawn = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters() if by else ():
            noise = 2 * torch.rand(parameter.shape, generator=drawn, dtype=torch.float64) - 1
            parameter.mul_((1 + by * noise).to(parameter.dtype))


def _lines(title: str, found: dict[str, Any]) -> Iterator[str]:
    yield f"{title}: first gradient; losses and norms of steps 1 to {AMONG}; gates {PARITY:.0e}, {NORM_PARITY:.0e}"
    for what, apart in found.items():
        numbers = ("  ".join(f"{x:.0e}" for x in apart[name]) for name in ("losses", "norms"))
        yield f"  {what:24} {apart['first_gradient']:.0e}   {'   '.join(numbers)}"


def main(arguments: Sequence[str] | None = None, result: Path = RESULT) -> int:
    """A table per network; 2 for a name that is none."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.image_models.rounding", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"default: {' '.join(NETWORKS)}")
    networks = parser.parse_args(arguments).networks or NETWORKS
    if unknown := [name for name in networks if name not in MODELS]:
        print(f"{unknown[0]}: expected of {', '.join(MODELS)}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    rows: dict[str, Any] = {}
    for name in networks:
        for warm in (True, False) if "warmup_steps" in MODELS[name] else (True,):
            title = f"{name}, {'warm' if warm else 'cold'}"
            rows[title] = measure(name, warm)
            print("\n".join(_lines(title, rows[title])), flush=True)
            write_json(result, {"steps": AMONG, "networks": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())

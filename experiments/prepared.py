"""What experiments read from the volume: whence `charts/prepare` brings it, and what stands for it in a small form.

python -m experiments.prepared VOLUME NAME...    # the small ones
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.small_images import write_cifar100, write_food101
from experiments.small_models import (
    write_mobilenet,
    write_qwen,
    write_qwen_moe,
    write_small_qwen,
    write_vit,
    write_vit_huge,
)
from experiments.small_texts import write_metamathqa


@dataclass(frozen=True)
class Prepared:
    """One name below _prepared/.

    Attributes:
        kind: the value of charts/prepare that names the source.
        source: on the hub; of weights the network.
        write_small: writes the same kind of files into a folder that is not there yet.
    """

    kind: str
    source: str
    write_small: Callable[[Path], None]


PREPARED: Mapping[str, Prepared] = {
    "cifar100": Prepared("dataset", "uoft-cs/cifar100", write_cifar100),
    "food101": Prepared("dataset", "ethz/food101", write_food101),
    "metamathqa": Prepared("dataset", "meta-math/MetaMathQA", write_metamathqa),
    "vit-base-patch16-224": Prepared("model", "google/vit-base-patch16-224", write_vit),
    "mobilenet-weights": Prepared("weights", "mobilenet", write_mobilenet),
    "qwen2.5-0.5b-instruct": Prepared("model", "Qwen/Qwen2.5-0.5B-Instruct", write_small_qwen),
    "qwen2.5-3b-instruct": Prepared("model", "Qwen/Qwen2.5-3B-Instruct", write_qwen),
    "qwen3-30b-a3b": Prepared("model", "Qwen/Qwen3-30B-A3B", write_qwen_moe),
    "vit-huge-patch14-224-in21k": Prepared("model", "google/vit-huge-patch14-224-in21k", write_vit_huge),
}


def fill_volume(names: Sequence[str], volume: Path, scratch: Path) -> None:
    """What is not there yet; a data set by way of the trainer's own preparation, as on a cluster.

    Args:
        scratch: for the files as their source has them.
    """
    for name in names:
        place = volume / "_prepared" / name
        if place.exists():
            continue
        prepared = PREPARED[name]
        if prepared.kind != "dataset":
            place.parent.mkdir(parents=True, exist_ok=True)
            prepared.write_small(place)
            continue
        source = scratch / name
        if not source.exists():
            prepared.write_small(source)
        volume.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "trainer.prepare", f"--dataset={source}"]
        subprocess.run([*command, f"--name={name}", f"--to={volume}"], check=True)


if __name__ == "__main__":
    if len(sys.argv) < 3 or not set(sys.argv[2:]) <= PREPARED.keys():
        sys.exit(f"found {sys.argv[1:]}; expected a folder, then names of {', '.join(PREPARED)}")
    fill_volume(sys.argv[2:], Path(sys.argv[1]), Path(sys.argv[1]) / "as-published")

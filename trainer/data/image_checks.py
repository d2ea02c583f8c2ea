"""Check images and classes before the ranks start, without torch.

`check_held_out` opens the held-out pictures on all cores, up to AT_ONCE: training would reach them only after its last
step. `trainer.prepare` opens the pictures of larger data sets. `scale_problem` limits how far images may be resized,
because a model learns nothing comparable from interpolated pixels. `check_classes` compares the classes of exported
weights with the data set.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stratlab_spec.models.model_specs import (
    describe_other,
    match_names,
    read_model_json,
    read_names,
    registered_name,
)
from stratlab_spec.registry import SIZES
from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import Config, ConfigError
from trainer.data.images import ImageData
from trainer.data.pictures import StoredPictures, Unreadable, name_all

AT_ONCE = 5_000
COMPARED = 50_000
"""Pictures of the train split whose sizes a run checks."""
CHUNK = 512


def say_nothing(_: object) -> None:
    """Ignore progress."""


def check_held_out(data: ImageData, test_alone: bool = False, prepared: bool = False) -> list[str]:
    """Open all held-out pictures of a run and return one line per unusual fact.

    Args:
        test_alone: skip the validation split.
        prepared: the pictures were opened when they were written.

    Raises:
        DataMissing: some cannot be decoded; the message names the first ten.
    """
    train, validation, test = data.train.stored, data.validation.stored, data.test.stored
    if not train or not validation or not test:  # generated, not read from files
        return []
    held = [test] if test_alone else [validation, test]
    count = sum(map(len, held))
    if count > AT_ONCE:
        said = f"{test.data}: {count:,} held-out pictures; a run opens at most {AT_ONCE:,} before it trains"
        return [] if prepared else [f"{said}, so it opened none; charts/prepare opens all"]
    if broken := [failure for pictures in held for failure in find_unreadable(pictures)]:
        raise name_all(broken, count)
    if len(train) > COMPARED:
        return []
    of_train = [train, validation] if validation.split == train.split else [train]
    return [*describe_repeated(test, of_train)]


def describe_repeated(test: StoredPictures, train: list[StoredPictures]) -> Iterator[str]:
    """Yield one line if test pictures are also in `train`, the parts of the train split."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        sizes = [*pool.map(test.size, range(len(test)))]
        known = {*sizes} - {0}
        learnt: set[bytes] = set()
        for part in train:
            # hash only pictures of equal size
            alike = [i for i, size in enumerate(pool.map(part.size, range(len(part)))) if size in known]
            learnt.update(pool.map(_hash, [part] * len(alike), alike))
        found = [i for i, size in enumerate(sizes) if size]
        count = sum(digest in learnt for digest in pool.map(_hash, [test] * len(found), found))
    if count:
        yield (
            f"{test.data}: {count:,} of the {len(test):,} test pictures are also in the train split, byte for byte; "
            "memorized pictures raise the test accuracy"
        )


def _hash(pictures: StoredPictures, index: int) -> bytes:
    return hashlib.sha256(pictures.content(index)).digest()


def find_unreadable(
    pictures: StoredPictures, report: Callable[[int], None] = say_nothing
) -> list[Unreadable]:
    """Return the pictures that cannot be decoded, in their order.

    Args:
        report: called now and then with the number of pictures opened so far.
    """

    def look(index: int) -> Unreadable | None:
        try:
            pictures.open(index)
        except Unreadable as failure:
            return failure
        return None

    found: list[Unreadable] = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for start in range(0, len(pictures), CHUNK):
            some = range(start, min(start + CHUNK, len(pictures)))
            found += [failure for failure in pool.map(look, some) if failure]
            report(some.stop)
    return found


MOST_ENLARGED = 7
"""CIFAR's 32 pixels on the 224 of the published models: the largest factor in the quoted sources."""
MOST_REDUCED = 16
"""Food-101's 512 pixels on 32. Downsampled ImageNet uses about this factor (arXiv 1707.08819)."""


def scale_problem(config: Config, source_edge: int | None, image_size: int) -> str | None:
    """Return why images of this data set are unusable at the model's size, or None.

    Args:
        source_edge: pixels of an edge in the data set; None = generated at any size.
        image_size: pixels of an edge that the model gets.
    """
    if source_edge is None:
        return None
    if source_edge * MOST_ENLARGED < image_size:
        how, most = "enlarged", MOST_ENLARGED
    elif image_size * MOST_REDUCED < source_edge:
        how, most = "reduced", MOST_REDUCED
    else:
        return None
    asked = "" if config.image_size else f" (the size of {registered_name(config) or config.model_name})"
    times = max(source_edge / image_size, image_size / source_edge)
    smallest, largest = -(-source_edge // MOST_REDUCED), source_edge * MOST_ENLARGED
    return (
        f"TRAINER_IMAGE_SIZE={image_size}{asked}: the images of {config.dataset_name} have edges of {source_edge} "
        f"pixels and would be {how} {times:.0f} times, expected at most {most}. Choose another TRAINER_DATASET, "
        f"or a TRAINER_MODEL or TRAINER_IMAGE_SIZE of {smallest} to {largest} pixels [SL-image-scale]"
    )


def evaluated(config: Config, weights: Path | None = None) -> Config:
    """Return the settings that evaluate exported weights: the weights are loaded, without training or profiling.

    Args:
        weights: the folder; None = `model_path`, or the export of the run of this name.
    """
    own = RunDirectory(config.results, config.comparison, config.run).model
    return config.model_copy(
        update={
            "model_path": str(weights or config.model_path or own),
            "init": "pretrained",
            **dict.fromkeys(SIZES, 0),  # the folder holds the sizes
            "teacher": "",
            "lora_rank": 0,  # exported weights include the adapters
            "activation_checkpointing": "none",
            "compile": False,
            "profile_steps": 0,
        }
    )


def check_classes(config: Config, data: ImageData) -> None:
    """Raise if the weights to evaluate have other classes than the data set, in any order.

    Raises:
        ConfigError: the classes differ.
    """
    known = read_names(read_model_json(config))
    if match_names(known, data.class_names) is None:
        said = describe_other(known, data.class_names, config.dataset_name)
        raise ConfigError(f"TRAINER_MODEL_PATH={config.model_path!r}: {said} [SL-exported-classes]")


def describe_head(config: Config, class_names: list[str]) -> str:
    """Return how a run changes the outputs of its initial weights; "" if the classes are the data set's own."""
    if config.init != "pretrained" or not config.model_path:
        return ""
    known = read_names(read_model_json(config))
    order = match_names(known, class_names)
    named = f"TRAINER_MODEL_PATH={config.model_path!r}"
    if order is None:
        return f"{named}: {describe_other(known, class_names, config.dataset_name)}; a new head is trained"
    if order != list(range(len(order))):
        return (
            f"{named}: has the classes of {config.dataset_name} in another order; its outputs are reordered"
        )
    return ""

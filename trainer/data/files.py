"""Find the data files and splits of a local data set, and check images and classes before the ranks start.

No data file is silently left out: `check_unread` reports files that `datasets` would ignore. `choose_splits` accepts
the usual names of splits in upper and lower case; `datasets` only accepts lower case.

`check_held_out` opens the held-out pictures on all cores, up to AT_ONCE: training would reach them only after its last
step. `trainer.prepare` opens the pictures of larger data sets. `scale_problem` limits how far images may be resized,
because a model learns nothing comparable from interpolated pixels. `check_classes` compares the classes of exported
weights with the data set.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stratlab_spec.exit_codes import DataMissing
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
from stratlab_spec.settings.wording import name_first
from trainer.data.images import ImageData
from trainer.data.pictures import StoredPictures, Unreadable, name_all

TABLES = {".csv": ",", ".tsv": "\t"}
"""Suffix -> separator of the columns."""
READERS = {
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "json"),
    **dict.fromkeys(TABLES, "csv"),
    ".parquet": "parquet",
    ".arrow": "arrow",
}
"""Suffix -> reader of `datasets`."""
DATA = (*READERS, ".xlsx", ".xls", ".feather", ".pickle", ".pkl")
UNPACKED = (".gz", ".bz2", ".xz")
"""Compressed files that are read as they are."""
PACKED = (*UNPACKED, ".zst", ".zip")
OTHERS = ("config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json")
"""Files in a data folder that `datasets` does not treat as data."""
HIDDEN = (".", "__")
MOST_FILES_NAMED = 3


def check_unread(named: str, folder: Path) -> None:
    """Raise if `datasets` would ignore a data file, because others have another kind or named splits.

    Folders of images are not checked: the other files belong to the images.

    Raises:
        DataMissing: names the files that would be ignored.
    """
    import datasets

    listed = datasets.load_dataset_builder(str(folder)).config.data_files or {}
    read = [Path(file) for files in listed.values() for file in files]
    known = {os.path.realpath(file) for file in read}
    unread = [f for f in list_files(folder) if is_data(f) and os.path.realpath(f) not in known]
    if unread and all(map(is_data, read)) and not _card_names_files(folder / "README.md"):
        raise DataMissing(
            f"{named}: {name_files(folder, unread)} would be ignored next to {name_files(folder, sorted(read))}; "
            "expected files of one kind, and either all named after their split (train, validation, test) or none "
            "[SL-data-files-unread]"
        )


def _card_names_files(card: Path) -> bool:
    """Return whether a data card assigns files to splits."""
    return card.is_file() and "data_files:" in card.read_text(errors="replace")


def walk_files(folder: Path, hidden: str | tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield every file, sorted within its folder.

    Args:
        hidden: prefixes of names of files and folders to skip.
    """
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(hidden))
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith(hidden))


def list_files(folder: Path) -> Iterator[Path]:
    """Yield every file that `datasets` considers, sorted within its folder."""
    return (file for file in walk_files(folder, HIDDEN) if file.name not in OTHERS)


def open_saved(folder: Path) -> dict[str, Any] | None:
    """Return the tables of a folder written by `save_to_disk`; None for another folder."""
    import datasets

    if not ((folder / "dataset_dict.json").exists() or (folder / "state.json").exists()):
        return None
    return as_tables(datasets.load_from_disk(str(folder)))


def as_tables(source: Any) -> dict[str, Any]:
    """Return an object opened by `datasets` as {split: table}; a single table is the train split."""
    return dict(source) if isinstance(source, dict) else {"train": source}


def is_data(file: Path) -> bool:
    """Return whether a file holds rows, compressed or not, in a supported or unsupported format."""
    suffix = file.suffix.lower()
    return suffix in DATA or (suffix in PACKED and Path(file.stem).suffix.lower() in DATA)


def name_files(folder: Path, files: Iterable[Path]) -> str:
    """Return the names of the first files, relative to `folder`."""
    return name_first([os.path.relpath(file, folder) for file in files], MOST_FILES_NAMED)


USUAL = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


def usual_name(name: str) -> str:
    """Return train, validation or test; "" for any other name."""
    return next((usual for usual, names in USUAL.items() if name.lower() in names), "")


def choose_splits(tables: Mapping[str, Any], data: str) -> dict[str, Any]:
    """Return the tables that a run uses, as train, validation and test; a single table is the train split.

    Args:
        data: name of the data set in messages.

    Raises:
        DataMissing: several tables without a train split, two tables for one split, or a table without rows.
    """
    if len(tables) == 1:
        found = {"train": next(iter(tables.values()))}
    else:
        found = {}
        for name, table in tables.items():
            usual = usual_name(name)
            if usual in found and name != usual and usual not in tables:
                raise DataMissing(
                    f"{data}: two splits are named {usual}: {', '.join(tables)}; expected one [SL-split-twice]"
                )
            if usual and (name == usual or usual not in tables):
                found[usual] = table
    if "train" not in found:
        raise DataMissing(
            f"{data}: has no split train to learn from; found {', '.join(tables)} [SL-split-train-absent]"
        )
    if empty := [split for split, table in found.items() if not len(table)]:
        raise DataMissing(
            f"{data}: split {empty[0]!r} has no samples; remove the split or add samples [SL-split-empty]"
        )
    return found


def describe_unused(data: str, tables: Mapping[str, Any], used: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line that names the tables that a run does not use, if any."""
    taken = {id(table) for table in used.values()}
    if unused := [name for name, table in tables.items() if id(table) not in taken]:
        yield f"{data}: a run uses train, validation and test; not used: {', '.join(unused)}"


def load_with_own_names(path: Path, data: str) -> dict[str, Any]:
    """Return the tables of a folder of data files, each with the class names of its own files.

    `datasets` gives all splits the names of the first file, even if the other files number their classes differently.

    Raises:
        DataMissing: files of one split give one code two names.
    """
    import datasets

    folders = [each.name for each in sorted(path.iterdir()) if each.is_dir() and usual_name(each.name)]
    patterns = None
    if any(name != name.lower() for name in folders):  # `datasets` does not read Train or TEST as splits
        patterns = {usual_name(name): f"{name}/**" for name in folders}
    source = datasets.load_dataset(str(path), data_files=patterns)
    files = datasets.load_dataset_builder(str(path), data_files=patterns).config.data_files or {}
    tables = dict(source)
    for split, table in source.items():
        mine = [str(file) for file in files.get(split, ()) if str(file).endswith(".parquet")]
        kinds = [_read_classes(file) for file in mine]
        if any(kind != kinds[0] for kind in kinds[1:]):
            other = next(file for file, kind in zip(mine, kinds, strict=True) if kind != kinds[0])
            raise DataMissing(
                f"{data}: split {split!r}: {mine[0]} and {other} number their classes differently; rewrite them "
                "with one list of names [SL-split-classes-differ]"
            )
        if kinds and any(table.features[name] != kind for name, kind in kinds[0].items()):
            tables[split] = datasets.load_dataset("parquet", data_files={split: mine}, split=split)
    return tables


def _read_classes(file: str) -> dict[str, Any]:
    """Return the columns of a parquet file that hold classes by code, as declared in the file."""
    import datasets

    lazily = datasets.load_dataset("parquet", data_files=[file], split="train", streaming=True)
    return {
        name: kind for name, kind in (lazily.features or {}).items() if isinstance(kind, datasets.ClassLabel)
    }


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

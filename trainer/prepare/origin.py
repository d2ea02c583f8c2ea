"""Read data sets and models from their source, write them, and verify that the written files can be read.

`write_source` does all three. `check_images` rejects faulty image data sets before anything is written, because every
run would fail on them. Weights of torchvision are downloaded without torch, to the path that torch reads in TORCH_HOME.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import math
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.registry import PUBLISHED_FILES, SERVER
from stratlab_spec.settings.config import Config, ConfigError
from trainer.data.columns import describe_classes, pick_columns, read_labels
from trainer.data.files import as_tables, choose_splits, describe_repeated, find_unreadable, say_nothing
from trainer.data.image_datasets import describe_unlisted, open_folder
from trainer.data.pictures import Unreadable, name_all, store_pictures
from trainer.prepare.request import Request


def check_images(
    name: str,
    tables: Mapping[str, Any],
    note: Callable[[str], None] = say_nothing,
    say: Callable[[str], None] = say_nothing,
) -> None:
    """Check the class of every sample and decode every picture once; skip a table without pictures.

    Calls `note` with the progress and `say` with one line per unusual fact.

    Raises:
        DataMissing: samples have no class, or pictures cannot be decoded.
    """
    import datasets

    data = f"--dataset {name!r}"
    pictures = [
        store_pictures(table, column, split, data)
        for split, table in tables.items()
        for column, feature in table.features.items()
        if isinstance(feature, datasets.Image)
    ]
    if not pictures:
        return
    splits, columns = choose_splits(tables, data), None
    with contextlib.suppress(ConfigError):  # a setting of the runs names the columns
        columns = pick_columns(Config(run="prepare"), splits["train"], data=data)
    if columns:
        names, codes = read_labels(splits, columns)
        if "test" in codes:
            for line in describe_classes(data, names, codes["train"], codes["test"]):
                say(line)
    broken: list[Unreadable] = []
    looked, total = 0, sum(map(len, pictures))
    for some in pictures:
        before = looked
        broken += find_unreadable(some, lambda opened: note(f"{before + opened} of {total} pictures opened"))  # noqa: B023
        looked += len(some)
    if broken:
        raise name_all(broken, looked)
    if columns and "test" in splits:
        test, train = (
            store_pictures(splits[split], columns.image, split, data) for split in ("test", "train")
        )
        for line in describe_repeated(test, [train]):
            say(line)


MODEL_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.md", "LICENSE*")
"""Files of a model that cannot run code when read."""
_NOT_TO_BE_HAD = (
    *("RepositoryNotFoundError", "RevisionNotFoundError", "GatedRepoError", "EntryNotFoundError"),
    *("RemoteEntryNotFoundError", "DatasetNotFoundError", "DataFilesNotFoundError", "EmptyDatasetError"),
    "HFValidationError",
)
"""Permanent errors of the hub's client and of `datasets`; names, because importing either here would be slow."""
_AWAY = ("ConnectError", "ConnectTimeout", "ConnectionError", "OfflineModeIsEnabled")
"""Errors of the first call, before any data: an unknown host name, or no answer."""
QUIET = ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_HUB_DISABLE_TELEMETRY")
BELOW_HOME = Path("hub", "checkpoints")
PIECE_BYTES = 1 << 20
SILENCE_S = 60.0
"""Seconds without a byte after which the server counts as unreachable."""


@dataclass(frozen=True)
class WrittenFolder:
    """Facts of the written folder."""

    revision: str | None
    """commit on the hub"""
    samples: dict[str, int] | None
    """by split; data sets only"""
    parameters: int | None
    """models only"""


def write_source(
    request: Request, folder: Path, scratch: Path, note: Callable[[str], None], say: Callable[[str], None]
) -> WrittenFolder:
    """Write the data set or model into `folder` and open it again.

    Calls `note` with the progress and `say` with one line per unusual fact about the data.

    Args:
        scratch: folder for downloads, on the same volume, because a node's own disk may be small.

    Raises:
        DataMissing: the source does not exist or cannot be read.
        OSError: the volume is full; ENOSPC is in the chain of causes.
    """
    # the hub's client reads it once, at its import
    os.environ |= {"HF_HOME": str(scratch)} | dict.fromkeys(QUIET, "1")
    try:
        if request.kind == "weights":
            return write_weights(request, folder)
        if request.kind == "model":
            return _write_model(request, folder)
        return _write_dataset(request, folder, note, say)
    except Exception as failure:
        if type(failure).__name__ in _NOT_TO_BE_HAD:
            raise DataMissing(
                f"--{request.kind} {request.source!r}: {failure} [SL-source-absent]"
            ) from failure
        raise


class HubAway(Exception):
    """The hub does not answer; a Job retries, because the same request may succeed a minute later."""


def _write_dataset(
    request: Request, folder: Path, note: Callable[[str], None], say: Callable[[str], None]
) -> WrittenFolder:
    import datasets

    datasets.disable_progress_bars()
    revision = None if request.is_local else _resolve(request)
    opened = _open_local(request.source) if request.is_local else _open_hub(request, revision)
    source = datasets.DatasetDict(as_tables(opened))
    check_images(request.source, source, note, say)
    if request.is_local:
        for line in describe_unlisted(Path(request.source), f"--dataset {request.source!r}", source):
            say(line)
    source.save_to_disk(str(folder))
    samples = {split: len(table) for split, table in source.items()}
    _verify_dataset(folder, samples)
    return WrittenFolder(revision, samples, None)


def _open_local(source: str) -> dict[str, Any]:
    try:
        return open_folder(Path(source), f"--dataset {source!r}")
    except DataMissing:
        raise
    except Exception as failure:
        if find_os_error(failure):
            raise
        raise DataMissing(
            f"--dataset {source!r}: not a data set in `datasets` format "
            f"(saved with save_to_disk, parquet files, or folders of images): {failure} [SL-source-format]"
        ) from failure


def _open_hub(request: Request, revision: str | None) -> Any:
    import datasets

    try:
        return datasets.load_dataset(request.source, request.subset or None, revision=revision)
    except ValueError as failure:  # "Config name is missing", "BuilderConfig 'x' not found"
        raise DataMissing(
            f"--dataset {request.source!r}, --subset {request.subset!r}: {failure} [SL-source-subset]"
        ) from failure


def _resolve(request: Request) -> str:
    """Return the current commit of the revision, so that the source cannot change during the download."""
    from huggingface_hub import HfApi

    try:
        info = HfApi().repo_info(request.source, repo_type=request.kind, revision=request.revision or None)
    except Exception as failure:
        if type(failure).__name__ not in _AWAY:
            raise
        raise HubAway(
            f"--{request.kind} {request.source!r}: the hub is unreachable ({failure}); on a cluster, apply "
            "manifests/components/hub-access, which opens it to the pods of charts/prepare [SL-hub-away]"
        ) from failure
    if not info.sha:
        raise DataMissing(
            f"--{request.kind} {request.source!r}: the hub does not name a commit [SL-source-no-commit]"
        )
    return info.sha


def _verify_dataset(folder: Path, samples: dict[str, int]) -> None:
    import datasets

    again = datasets.load_from_disk(str(folder))
    found = {split: len(table) for split, table in again.items()}
    if found != samples:
        raise OSError(f"{folder}: {found} samples can be read, {samples} were written [SL-prepared-samples]")
    for split, table in again.items():
        for index in {0, len(table) - 1} if len(table) else ():
            try:
                table[index]
            except Exception as failure:
                raise DataMissing(
                    f"split {split!r}: sample {index} cannot be decoded: {failure} [SL-prepared-undecodable]"
                ) from failure


def _write_model(request: Request, folder: Path) -> WrittenFolder:
    from huggingface_hub import HfApi, snapshot_download

    revision = _resolve(request)
    names = HfApi().list_repo_files(request.source, revision=revision)
    if not fnmatch.filter(names, "*.safetensors"):
        raise DataMissing(
            f"--model {request.source!r}: has no *.safetensors; weights in other formats can run code when read "
            "[SL-source-no-safetensors]"
        )
    snapshot_download(request.source, revision=revision, local_dir=folder, allow_patterns=list(MODEL_FILES))
    shutil.rmtree(folder / ".cache")  # the client's notes
    return WrittenFolder(revision, None, _count_parameters(folder))


def _count_parameters(folder: Path) -> int:
    from safetensors import SafetensorError, safe_open

    try:
        json.loads((folder / "config.json").read_text())
        for index in folder.rglob("*.safetensors.index.json"):
            parts = set(json.loads(index.read_text())["weight_map"].values())
            for part in sorted(parts):
                if not (index.parent / part).is_file():
                    raise DataMissing(
                        f"{index.name} lists {part}, which the model does not contain [SL-source-parts-absent]"
                    )
        total = 0
        for path in sorted(folder.rglob("*.safetensors")):
            with safe_open(path, framework="np") as tensors:
                total += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    except (FileNotFoundError, json.JSONDecodeError, KeyError, SafetensorError) as failure:
        raise DataMissing(f"the model cannot be read: {failure!r} [SL-source-model-unreadable]") from failure
    return total


def write_weights(request: Request, folder: Path) -> WrittenFolder:
    """Download the file of one network to `folder`/hub/checkpoints; its name holds the first digits of its sha256.

    Raises:
        DataMissing: the server does not have the file.
        OSError: the server is unreachable, the volume is full, or the hash of the download is wrong.
    """
    name = PUBLISHED_FILES[request.source]
    place = folder / BELOW_HOME
    place.mkdir(parents=True)
    digest = hashlib.sha256()
    try:
        with (
            urllib.request.urlopen(f"{SERVER}/{name}", timeout=SILENCE_S) as answer,
            open(place / name, "wb") as file,
        ):
            while piece := answer.read(PIECE_BYTES):
                digest.update(piece)
                file.write(piece)
    except urllib.error.HTTPError as failure:
        if failure.code == 404:
            raise DataMissing(
                f"--weights {request.source!r}: {SERVER}/{name}: {failure} [SL-published-absent]"
            ) from failure
        raise
    wanted = name.rpartition("-")[2].removesuffix(".pth")
    if not digest.hexdigest().startswith(wanted):
        raise OSError(
            f"{name}: its sha256 starts with {digest.hexdigest()[:8]}, expected {wanted} "
            "[SL-published-sha256]"
        )
    return WrittenFolder(None, None, None)


def find_os_error(failure: BaseException | None) -> OSError | None:
    """Return the error of the operating system in a chain of causes; libraries wrap it."""
    while failure is not None:
        if isinstance(failure, OSError) and failure.errno and not isinstance(failure, FileNotFoundError):
            return failure
        failure = failure.__cause__ or failure.__context__
    return None

"""Read files of torch.distributed.checkpoint without running code from them.

torch's reader unpickles `.metadata` and every entry that is not a tensor without restrictions (torch 2.13,
filesystem.py `read_metadata`, default_planner.py `load_bytes`): a file on the volume could run any code in every rank.
Here `GuardedReader` lets `.metadata` name only torch's own metadata classes, and `GuardedPlanner` reads the other
entries with `weights_only`.
"""

from __future__ import annotations

import io
import pickle
import warnings
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any, NoReturn

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, FileSystemReader, filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

from stratlab_spec.settings.config import ConfigError
from trainer.checkpoint.deepspeed_files import describe_refused, find_reason

FILE = ".metadata"
METADATA_CLASSES = (
    *("Metadata", "StorageMeta", "MetadataIndex", "ChunkStorageMetadata", "TensorProperties"),
    *("TensorStorageMetadata", "BytesStorageMetadata", "_MEM_FORMAT_ENCODING"),
)
ALLOWED: dict[tuple[str, str], Any] = {
    **{(metadata.__name__, name): getattr(metadata, name) for name in METADATA_CLASSES},
    (filesystem.__name__, "_StorageInfo"): filesystem._StorageInfo,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("torch", "Size"): torch.Size,
    # the module that saved it; Python 3.13 moved the classes to their own module
    **{
        (home, kind.__name__): kind
        for home in ("pathlib", "pathlib._local")
        for kind in (PosixPath, PurePosixPath)
    },
}
"""All names that `.metadata` may use, in addition to torch's element types and members of torch's enum."""


class MetadataUnpickler(pickle.Unpickler):
    """An unpickler that knows only the names in ALLOWED."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):  # Python 3.11.2 pickles a member of an enum this way
            return _read_member
        if (module, name) in ALLOWED:
            return ALLOWED[module, name]
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("a reference to something outside of the file")


def _read_member(owner: Any, name: Any) -> Any:
    known = metadata._MEM_FORMAT_ENCODING
    if owner is not known or name not in known.__members__:
        raise pickle.UnpicklingError(f"getattr of {owner!r}, {name!r}")
    return known[name]


def read_metadata(folder: Path) -> metadata.Metadata:
    """Return the content of `.metadata` of a folder.

    Raises:
        RuntimeError: `.metadata` does not exist.
        ConfigError: it holds anything except torch's metadata, or names a file outside of the folder.
    """
    path = folder / FILE
    if not path.is_file():
        raise RuntimeError(f"{path} does not exist [SL-metadata-missing]")
    with open(path, "rb") as file:
        try:
            found = MetadataUnpickler(file).load()
            assert isinstance(found, metadata.Metadata), f"a {type(found).__name__}"
            for info in found.storage_data.values():
                assert Path(info.relative_path).name == info.relative_path, f"names {info.relative_path}"
        except Exception as failure:
            reason = find_reason(failure)
            problem = f"{path}: rejected, damaged or not torch's metadata: {reason} [SL-metadata-refused]"
            raise ConfigError([problem]) from failure
    return found


class GuardedReader(FileSystemReader):
    """torch's reader, with metadata from `read_metadata`, read once."""

    _known: metadata.Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> metadata.Metadata:
        if self._known is None:
            self._known = read_metadata(Path(self.path))
        if self._known.storage_meta is None:
            self._known.storage_meta = metadata.StorageMeta()
        self._known.storage_meta.load_id = self.load_id
        return self._known


class GuardedPlanner(DefaultLoadPlanner):
    """torch's planner; entries that are not tensors are read as plain values."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        try:
            plain = torch.load(value, weights_only=True)
        except Exception as failure:
            text = f"rejected, damaged or not a plain value: {find_reason(failure)}"
            raise ConfigError([f"{read_item.dest_index.fqn}: {text} [SL-value-not-plain]"]) from failure
        harmless = io.BytesIO()  # serialized again by this process, for torch's own planner to load
        torch.save(plain, harmless)
        harmless.seek(0)
        super().load_bytes(read_item, harmless)


def read_sharded(state: dict[str, Any], folder: Path) -> None:
    """Fill `state` from files of any number of ranks; collective.

    Raises:
        RuntimeError: with the failure of each rank. torch raises a BaseException, which `except Exception` misses.
        ConfigError: a file was rejected, on every rank; see the module docstring.
    """
    reader = GuardedReader(folder)
    reader.read_metadata()  # fails first: torch would search for another file after a rejection
    try:
        dcp.load(state, storage_reader=reader, planner=GuardedPlanner())
    except CheckpointException as failure:
        causes = [cause for cause, _stack in failure.failures.values()]  # one per failed rank
        if refused := [cause for cause in causes if isinstance(cause, ConfigError)]:
            raise refused[0] from failure
        if pickled := [cause for cause in causes if isinstance(cause, pickle.UnpicklingError)]:
            raise ConfigError([describe_refused(folder, pickled[0])]) from failure
        raise RuntimeError(str(failure)) from failure


class NativeTensors:
    """Whole tensors of such a folder by the names of the model, without collectives."""

    def __init__(self, folder: Path) -> None:
        self._reader = GuardedReader(folder)
        self._entries = self._reader.read_metadata().state_dict_metadata

    def weight(self, name: str) -> Tensor | None:
        """Return a parameter or buffer; None if the name is unknown."""
        return self._read(f"model.{name}")

    def moments(self, name: str) -> dict[str, Tensor]:
        """Return the optimizer state of a parameter; empty for a frozen parameter and with SGD."""
        head = f"optimizer.state.{name}."
        keys = [key.removeprefix(head) for key in self._entries if key.startswith(head)]
        found = {key: self._read(head + key) for key in keys if "." not in key}
        return {key: tensor for key, tensor in found.items() if tensor is not None}

    def loss_scale(self) -> Tensor:
        found = self._read("loss_scale")
        assert found is not None
        return found

    def _read(self, key: str) -> Tensor | None:
        entry = self._entries.get(key)
        if not isinstance(entry, metadata.TensorStorageMetadata):
            return None
        state = {key: torch.empty(entry.size, dtype=entry.properties.dtype)}
        with warnings.catch_warnings():  # torch warns that it reads without other ranks, which is intended
            warnings.simplefilter("ignore", UserWarning)
            dcp.load(state, storage_reader=self._reader, planner=GuardedPlanner(), no_dist=True)
        return state[key]

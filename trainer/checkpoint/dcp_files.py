"""Files of torch.distributed.checkpoint, read without running anything: own ones and those of another run.

torch's reader unpickles `.metadata` as it stands, and so every entry that is no tensor (torch 2.13, filesystem.py
`read_metadata`, default_planner.py `load_bytes`): a file on the volume could run whatever it likes in every rank. Here
the first may name torch's own classes of metadata alone, and the second are read with `weights_only`.
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
    # where it was saved; Python 3.13 has the classes in a module of their own
    **{
        (home, kind.__name__): kind
        for home in ("pathlib", "pathlib._local")
        for kind in (PosixPath, PurePosixPath)
    },
}
"""All that `.metadata` may name, beside torch's element types and members of torch's own enum."""


class MetadataUnpickler(pickle.Unpickler):
    """Knows what stands in ALLOWED."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):  # how Python 3.11.2 pickles a member of an enum
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
    """What `.metadata` says lies in the folder.

    Raises:
        RuntimeError: it is not there.
        ConfigError: it holds anything but torch's metadata, or names a file outside of the folder.
    """
    path = folder / FILE
    if not path.is_file():
        raise RuntimeError(f"{path} is not there [SL-metadata-missing]")
    with open(path, "rb") as file:
        try:
            found = MetadataUnpickler(file).load()
            assert isinstance(found, metadata.Metadata), f"a {type(found).__name__}"
            for info in found.storage_data.values():
                assert Path(info.relative_path).name == info.relative_path, f"names {info.relative_path}"
        except Exception as failure:
            reason = find_reason(failure)
            problem = f"{path}: refused, not torch's metadata or damaged: {reason} [SL-metadata-refused]"
            raise ConfigError([problem]) from failure
    return found


class GuardedReader(FileSystemReader):
    """torch's, by `read_metadata`, which it asks once."""

    _known: metadata.Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> metadata.Metadata:
        if self._known is None:
            self._known = read_metadata(Path(self.path))
        if self._known.storage_meta is None:
            self._known.storage_meta = metadata.StorageMeta()
        self._known.storage_meta.load_id = self.load_id
        return self._known


class GuardedPlanner(DefaultLoadPlanner):
    """torch's; what is no tensor is read as plain values."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        try:
            plain = torch.load(value, weights_only=True)
        except Exception as failure:
            text = f"refused, no plain value or damaged: {find_reason(failure)}"
            raise ConfigError([f"{read_item.dest_index.fqn}: {text} [SL-value-not-plain]"]) from failure
        harmless = io.BytesIO()  # written anew by this process: torch's own planner puts it where it belongs
        torch.save(plain, harmless)
        harmless.seek(0)
        super().load_bytes(read_item, harmless)


def read_sharded(state: dict[str, Any], folder: Path) -> None:
    """Fills `state` with what any number of ranks wrote; collective.

    Raises:
        RuntimeError: with what each rank says. torch raises a BaseException, which passes every `except Exception`.
        ConfigError: refused, on every rank; see above.
    """
    reader = GuardedReader(folder)
    reader.read_metadata()  # torch would look for another one where this one is refused
    try:
        dcp.load(state, storage_reader=reader, planner=GuardedPlanner())
    except CheckpointException as failure:
        causes = [cause for cause, _stack in failure.failures.values()]  # of the ranks
        if refused := [cause for cause in causes if isinstance(cause, ConfigError)]:
            raise refused[0] from failure
        if pickled := [cause for cause in causes if isinstance(cause, pickle.UnpicklingError)]:
            raise ConfigError([describe_refused(folder, pickled[0])]) from failure
        raise RuntimeError(str(failure)) from failure


class NativeTensors:
    """Single tensors of such a folder, whole, by the names of the model; no collective, no other rank is needed."""

    def __init__(self, folder: Path) -> None:
        self._reader = GuardedReader(folder)
        self._entries = self._reader.read_metadata().state_dict_metadata

    def weight(self, name: str) -> Tensor | None:
        """A parameter or buffer; None where none has this name."""
        return self._read(f"model.{name}")

    def moments(self, name: str) -> dict[str, Tensor]:
        """What the optimizer keeps of a parameter; nothing of a frozen one, nor of any with SGD."""
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
        with warnings.catch_warnings():  # that it works alone, which is what was asked for
            warnings.simplefilter("ignore", UserWarning)
            dcp.load(state, storage_reader=self._reader, planner=GuardedPlanner(), no_dist=True)
        return state[key]

"""Read checkpoint files without running code from them: DeepSpeed's, and those of torch.distributed.checkpoint.

DeepSpeed's (0.19.8) become whole tensors by the names of the model, for any stage and world size.

* `*zero_pp_rank_k_*_optim_states.pt` of rank k: one flat part of each parameter and of its moments, concatenated.
* `*model_states.pt`: shapes, names, and frozen parameters.
* Stages 1 and 2 concatenate the parameters of a group; each rank has an equal part of the result.
* Stage 3 splits each parameter on its own into equal parts, the last ones padded.

The files are read without DeepSpeed and without running code. They contain two of its classes, and older files an enum
(trainer/engines/deepspeed_checkpoint.py). The substitutes here hold the same numbers and have no behaviour.

torch's reader unpickles `.metadata` and every entry that is not a tensor without restrictions (torch 2.13,
filesystem.py `read_metadata`, default_planner.py `load_bytes`): a file on the volume could run any code in every rank.
Here `GuardedReader` lets `.metadata` name only torch's own metadata classes, and `GuardedPlanner` reads the other
entries with `weights_only`.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import re
import warnings
from collections.abc import Iterator
from enum import IntEnum
from functools import cached_property
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any, NoReturn

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, FileSystemReader, filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

from stratlab_spec.settings.config import ConfigError


class Fragment:
    """Substitute for deepspeed.utils.tensor_fragment.fragment_address: `numel` elements from `start`."""

    numel: int
    start: int


class Scaler:
    """Substitute for deepspeed.runtime.fp16.loss_scaler.LossScaler: one number; the trainer uses its own LossScale."""


Stage = IntEnum("Stage", {"disabled": 0, "optimizer_states": 1, "gradients": 2, "weights": 3})
"""Members of deepspeed.runtime.zero.config.ZeroStageEnum."""


def read_stage(owner: object, name: object) -> Any:
    """Replace `getattr` when a file is read; accepts only members of that enum.

    Raises:
        ValueError: another object, or an unknown member.
    """
    members = Stage.__members__
    if owner is not Stage or name not in members:
        raise ValueError(f"getattr of {owner!r}, {name!r}")
    return members[str(name)]


STAND_INS: list[Any] = [
    (Scaler, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    (Fragment, "deepspeed.utils.tensor_fragment.fragment_address"),
    (Stage, "deepspeed.runtime.zero.config.ZeroStageEnum"),
    (read_stage, "builtins.getattr"),
]


def read_plain(file: Path) -> Any:
    """Return the content of a file; its tensors are memory-mapped.

    Raises:
        ConfigError: the file is damaged, or holds anything except tensors, plain values and the classes above.
    """
    with torch.serialization.safe_globals(STAND_INS):
        try:
            return torch.load(file, weights_only=True, map_location="cpu", mmap=True)
        except Exception as failure:
            raise ConfigError([describe_refused(file, failure)]) from failure


def refuse_code(folder: Path) -> None:
    """Check that every file holds only plain tensors, because DeepSpeed would run any code in a pickle.

    Raises:
        ConfigError: names each file that holds anything else.
    """
    problems = []
    for file in sorted(folder.rglob("*.pt")):
        try:
            read_plain(file)
        except ConfigError as failure:
            problems += failure.problems
    if problems:
        raise ConfigError(problems)


def describe_refused(path: Path, failure: BaseException) -> str:
    """Return the error for a file, or a folder of files, that is damaged or holds more than plain tensors."""
    return f"{path}: rejected, damaged or not plain tensors: {find_reason(failure)} [SL-tensors-not-plain]"


def find_reason(failure: BaseException) -> str:
    """Extract the reason, which torch puts after its advice on loading files or in a paragraph below it."""
    _, mark, reason = str(failure).rpartition("WeightsUnpickler error: ")
    if not mark and reason.startswith("Weights only load failed"):
        reason = reason.partition("\n\n")[2]
    return reason.strip().split("\n")[0][:200] or type(failure).__name__


TAG = "deepspeed"
FACTS = "deepspeed_facts.json"
BUFFERS = "deepspeed_buffers.pt"
RANK = re.compile(r"zero_pp_rank_(\d+)_mp_rank_00_optim_states\.pt$")
WEIGHT = "fp32"
Piece = tuple[int, int, int]
"""(group, start, elements) of a parameter in the file of one rank."""


def is_zero(folder: Path) -> bool:
    """Return whether an engine of DeepSpeed has written this folder."""
    return (folder / FACTS).is_file()


def read_facts(folder: Path) -> dict[str, Any]:
    """Return {"world_size", "stage"} of the engine that wrote it.

    Raises:
        ConfigError: the folder is incomplete.
    """
    if not is_zero(folder) or not (folder / TAG).is_dir():
        missing = f"{FACTS} or {TAG}/ is missing"
        raise ConfigError([f"{folder}: not a DeepSpeed checkpoint, {missing} [SL-not-a-zero-checkpoint]"])
    found: dict[str, Any] = json.loads((folder / FACTS).read_text())
    return found


class ZeroTensors:
    """Tensors of a DeepSpeed checkpoint, read on demand from memory-mapped files, without collectives.

    Raises:
        ConfigError: a file is missing, or holds anything except plain tensors.
    """

    def __init__(self, folder: Path) -> None:
        facts = read_facts(folder)
        self._folder = folder
        self._stage = int(facts["stage"])
        names, ranks = (folder / TAG).iterdir(), facts["world_size"]
        files = {int(match[1]): path for path in names if (match := RANK.search(path.name))}
        if sorted(files) != list(range(ranks)):
            had = f"has files of {len(files)} ranks, but was saved by {ranks}"
            raise ConfigError([f"{folder / TAG}: {had} [SL-zero-files-missing]"])
        self._parts = [read_plain(files[rank])["optimizer_state_dict"] for rank in sorted(files)]
        self._pieces = [dict(self._find_pieces(rank)) for rank in range(len(files))]

    @cached_property
    def _models(self) -> list[dict[str, Any]]:
        """Return the model states: one per rank in stage 3, else one for all ranks."""
        files = {
            int(match[1]) if (match := re.search(r"zero_pp_rank_(\d+)_", path.name)) else 0: path
            for path in (self._folder / TAG).glob("*model_states.pt")
        }
        return [read_plain(files[rank]) for rank in sorted(files)]

    @cached_property
    def _buffers(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = read_plain(self._folder / BUFFERS)
        return found

    @cached_property
    def _shapes(self) -> dict[str, torch.Size]:
        return {name: shape for group in self._models[0]["param_shapes"] for name, shape in group.items()}

    def weight(self, name: str) -> Tensor | None:
        """Return a trained parameter in fp32, or a frozen one or a buffer unchanged; None if the name is unknown."""
        if name in self._shapes:
            return self._join(name, WEIGHT)
        if name in self._buffers:
            return self._buffers[name]
        if self._stage < 3:
            found: Tensor | None = self._models[0]["module"].get(name)
            return found
        shape = (self._models[0].get("frozen_param_shapes") or {}).get(name)
        if shape is None:
            return None
        parts = [model["frozen_param_fragments"][name].flatten() for model in self._models]
        return torch.cat(parts)[: math.prod(shape)].view(shape)

    def moments(self, name: str) -> dict[str, Tensor]:
        """Return the optimizer state of a parameter; empty for a frozen parameter and with SGD."""
        if name not in self._shapes:
            return {}
        rank, pieces = next((rank, pieces) for rank, pieces in enumerate(self._pieces) if name in pieces)
        return {
            key: self._join(name, key) if torch.is_tensor(value) and value.ndim else torch.as_tensor(value)
            for key, value in self._state(rank, pieces[name][0]).items()
        }

    def loss_scale(self) -> Tensor:
        return torch.tensor(self._models[0]["loss_scale"], dtype=torch.float64)

    def _state(self, rank: int, group: int) -> dict[str, Any]:
        """Return the optimizer state of one flat part."""
        part = self._parts[rank]
        kept = part["optimizer_state_dict"] if self._stage == 3 else part["base_optimizer_state"]
        found: dict[str, Any] = kept["state"].get(group, {})
        return found

    def _join(self, name: str, key: str) -> Tensor:
        weights = "fp32_flat_groups" if self._stage == 3 else "single_partition_of_fp32_groups"
        found = []
        for rank, pieces in enumerate(self._pieces):
            if name not in pieces:
                continue
            group, start, length = pieces[name]
            flat = self._parts[rank][weights][group] if key == WEIGHT else self._state(rank, group)[key]
            found.append(flat[start : start + length])
        return torch.cat(found).view(self._shapes[name])

    def _find_pieces(self, rank: int) -> Iterator[tuple[str, Piece]]:
        part = self._parts[rank]
        if self._stage < 3:
            for group, mapping in enumerate(part["param_slice_mappings"]):
                for name, address in mapping.items():
                    yield name, (group, address.start, address.numel)
            return
        ranks = len(self._parts)
        for group, shapes in enumerate(self._models[0]["param_shapes"]):
            start = 0
            for name, shape in shapes.items():
                whole, length = math.prod(shape), math.ceil(math.prod(shape) / ranks)
                yield name, (group, start, max(0, min(length, whole - rank * length)))
                start += length


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

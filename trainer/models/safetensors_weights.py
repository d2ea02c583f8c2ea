"""A decoder's parameters in the files that transformers writes, read one at a time; never a pickle."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from trainer.failures import DataMissing
from trainer.models.decoder_weights import Weights
from trainer.settings.spelling import name_first
from trainer.shapes.decoder_rules import no_weights

MOST_NAMED = 3
_IDLE = re.compile(r"^lm_head\.weight$|\.rotary_emb\.inv_freq$")
"""A tied head that is stored beside its embedding; what is computed anyway."""
_EXPERTS = re.compile(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)$")


class SafetensorsWeights:
    """Parameters in the *.safetensors of a folder in Hugging Face format, read when asked for.

    The files hold one tensor per expert and matrix (transformers, conversion_mapping.py, "qwen2_moe"); they are put
    together to the fused ones. Adapters are in no such file: they come from `fresh`.

    Args:
        folder: with model.safetensors, or several files and their model.safetensors.index.json.
        fresh: names and shapes of all parameters, and the adapters' values.
        named: the setting that led here, for errors.

    Raises:
        DataMissing: no weights are there, or some that nobody would read: the model would be another one.
    """

    def __init__(self, folder: Path, fresh: Weights, named: str) -> None:
        self._folder = folder
        self._fresh = fresh
        self._named = named
        self._file_of = _read_index(folder, named)
        self._open: dict[str, Any] = {}
        if unread := sorted(self._unread()):
            raise self._missing(
                f"has tensors that this model does not: {name_first(unread, MOST_NAMED)} [SL-tensors-unknown]"
            )

    @property
    def names(self) -> list[str]:
        return self._fresh.names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._fresh.shape(name)

    def tensor(self, name: str) -> Tensor:
        if ".lora_" in name:
            return self._fresh.tensor(name)
        stored = _stored_name(name)
        wanted = self.shape(name)
        fused = _EXPERTS.match(stored)
        if fused and stored not in self._file_of:
            return self._experts(fused[1], fused[2], wanted)
        return self._read(stored, wanted).float()

    def _unread(self) -> set[str]:
        known = {_stored_name(name) for name in self.names if ".lora_" not in name}
        experts = {f"{found[1]}." for name in known if (found := _EXPERTS.match(name))}
        return {
            name
            for name in self._file_of
            if name not in known and not _IDLE.search(name) and not any(map(name.startswith, experts))
        }

    def _experts(self, layer: str, matrix: str, wanted: tuple[int, ...]) -> Tensor:
        whole = torch.empty(wanted)
        parts = ("gate_proj", "up_proj") if matrix == "gate_up_proj" else ("down_proj",)
        rows = wanted[1] // len(parts)
        for expert in range(wanted[0]):
            for i, part in enumerate(parts):
                stored = f"{layer}.{expert}.{part}.weight"
                whole[expert, i * rows : (i + 1) * rows] = self._read(stored, (rows, wanted[2]))
        return whole

    def _read(self, stored: str, wanted: tuple[int, ...]) -> Tensor:
        if stored not in self._file_of:
            raise self._missing(f"has no tensor {stored} [SL-tensor-absent]")
        tensor = self._read_file(self._file_of[stored], stored)
        if tuple(tensor.shape) != wanted:
            raise self._missing(
                f"{stored} has the shape {tuple(tensor.shape)}, expected {wanted} [SL-tensor-shape]"
            )
        return tensor

    def _read_file(self, file: str, stored: str) -> Tensor:
        try:
            if file not in self._open:
                self._open[file] = safe_open(self._folder / file, framework="pt")
            return self._open[file].get_tensor(stored)
        except Exception as failure:  # safetensors has an error class of its own, beside the disk's
            raise unreadable(self._named, file, failure) from failure

    def _missing(self, what: str) -> DataMissing:
        return DataMissing(f"{self._named}: {what}")


def _stored_name(name: str) -> str:
    return name.removeprefix("hf.").replace(".base_layer.", ".")


def _read_index(folder: Path, named: str) -> dict[str, str]:
    """File by tensor name, of the index if there is one, else of the files' own headers."""
    path = folder / "model.safetensors.index.json"
    try:
        if path.exists():
            return dict(json.loads(path.read_text())["weight_map"])
        files: dict[str, str] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as opened:
                files |= dict.fromkeys(opened.keys(), path.name)
    except Exception as failure:  # as above, and JSON's
        raise unreadable(named, path.name, failure) from failure
    if not files:
        raise DataMissing(no_weights(named))
    return files


def unreadable(named: str, file: str, failure: Exception) -> DataMissing:
    """What to raise for a file of weights.

    Args:
        named: the setting that led to it.
    """
    return DataMissing(f"{named}: {file} cannot be read: {failure} [SL-weights-unreadable]")


def fetch_weights(source: str, named: str) -> Path:
    """The folder of a hub id's weights, from the cache or the hub.

    Raises:
        DataMissing: neither has them.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=["*.safetensors", "*.safetensors.index.json"]))
    except Exception as failure:  # network, disk, no such model: all mean "not to be had"
        raise DataMissing(
            f"{named}: expected the weights of {source} from the hub, its cache in HF_HOME, or "
            f"TRAINER_MODEL_PATH: {failure} [SL-weights-unfetched]"
        ) from failure

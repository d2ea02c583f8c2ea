"""Read or draw a model's initial weights, without pickles.

A decoder loads one parameter at a time by name (`open_weights`, `fill_weights`): from the seed, a folder or the hub.
The values do not depend on stage, mesh or number of ranks. The image networks read whole files from a folder
(`read_weights`, `load_weights`).
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models.decoder_config import hub_id, no_weights
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.wording import name_first
from trainer.models.decoder import Decoder
from trainer.models.model_with_loss import ImageClassifier

STANDARD_DEVIATION = 0.02
"""Standard deviation of fresh matrices where the configuration has no initializer_range."""


class Weights:
    """Whole parameters by their names inside the Decoder. A tied head is not listed: it is the embedding.

    Args:
        shapes: by name, in the order of the model.
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self._shapes = shapes

    @property
    def names(self) -> list[str]:
        """Return the names of all parameters, in the order of the model."""
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a parameter without reading it."""
        return self._shapes[name]

    def tensor(self, name: str) -> Tensor:
        """Return one parameter, whole: fp32 on the CPU.

        Raises:
            DataMissing: the parameter is missing or has another shape.
        """
        raise NotImplementedError


class RandomWeights(Weights):
    """Matrices normal(0, 0.02), biases zero; LoRA's A like peft's (kaiming uniform), B zero.

    The run's seed and the parameter's name seed each parameter's own generator. So the values do not depend on the
    order or on the ranks.

    Args:
        constants: of norms, by name; see `read_constants`.
        deviation: standard deviation of the normal distribution.
    """

    def __init__(
        self,
        shapes: dict[str, tuple[int, ...]],
        seed: int,
        constants: Mapping[str, float] | None = None,
        deviation: float = STANDARD_DEVIATION,
    ) -> None:
        super().__init__(shapes)
        self._seed = seed
        self._constants = constants or {}
        self._deviation = deviation

    def tensor(self, name: str) -> Tensor:
        size = self._shapes[name]
        if name in self._constants:
            return torch.full(size, self._constants[name])
        if ".lora_B." in name or name.endswith("bias"):
            return torch.zeros(size)
        # draw the base of an adapter like a weight without adapter
        drawn_as = name.replace(".base_layer.", ".")
        digest = hashlib.sha256(f"{self._seed} {drawn_as}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        if ".lora_A." in name:
            bound = 1 / math.sqrt(size[1])  # kaiming_uniform_ with a = sqrt(5)
            return torch.empty(size).uniform_(-bound, bound, generator=generator)
        return torch.empty(size).normal_(0.0, self._deviation, generator=generator)


@torch.no_grad()
def read_constants(decoder: Decoder) -> dict[str, float]:
    """Return the first value of every norm's parameters, by name: transformers' own.

    A Gemma norm multiplies by 1 + weight and starts from zero.
    """
    found: dict[str, float] = {}
    of_kind: dict[type[nn.Module], dict[str, float]] = {}
    for path, module in decoder.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if not own or "norm" not in type(module).__name__.lower():
            continue
        if type(module) not in of_kind:
            of_kind[type(module)] = _read_initial(decoder, module)
        found |= {f"{path}.{name}": of_kind[type(module)][name] for name in own}
    return found


def _read_initial(decoder: Decoder, norm: nn.Module) -> dict[str, float]:
    """Return the first value of each parameter as transformers initialises it, from a copy with its own memory."""
    probe = copy.copy(norm)
    with unset_fake_temporarily(), torch.device("cpu"):
        probe._parameters = {
            name: nn.Parameter(torch.full((1,), float(not name.endswith("bias"))))
            for name, parameter in norm.named_parameters(recurse=False)
        }
        decoder.hf._init_weights(probe)
        return {name: float(parameter[0]) for name, parameter in probe.named_parameters(recurse=False)}


@torch.no_grad()
def fill_weights(module: nn.Module, weights: Weights) -> None:
    """Copy every parameter's weights into a whole module that uses the Decoder's names."""
    for name, parameter in module.named_parameters():
        parameter.copy_(weights.tensor(name))


MOST_NAMED = 3
_IDLE = re.compile(r"^lm_head\.weight$|\.rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$")
"""Names to ignore: a tied head stored next to its embedding, and computed buffers."""
_OF_IMAGES = re.compile(r"(^|\.)(vision_tower|multi_modal_projector|vision_model|visual)\.")
"""Names to ignore in a checkpoint that also takes images."""


class SafetensorsWeights(Weights):
    """Parameters in the *.safetensors of a folder in Hugging Face format, read on demand.

    transformers' own mapping of the family turns stored names and pieces into parameters (conversion_mapping.py). It
    fuses one tensor per expert and matrix into one tensor. Adapters are not in these files: they come from `fresh`.

    Args:
        folder: with model.safetensors, or several files and their model.safetensors.index.json.
        fresh: names and shapes of all parameters, and the adapters' values.
        hf: the model of transformers, on any device.
        named: the setting that names the folder, for errors.

    Raises:
        DataMissing: the folder has no weights, or has tensors that the model does not use.
    """

    def __init__(self, folder: Path, fresh: Weights, hf: Any, named: str) -> None:
        super().__init__({name: fresh.shape(name) for name in fresh.names})
        self._folder = folder
        self._fresh = fresh
        self._hf = hf
        self._named = named
        self._file_of = _read_index(folder, named)
        self._open: dict[str, Any] = {}
        self._sources: dict[str, list[tuple[str, str | None]]] = {}
        """Stored tensors of each parameter, each with the pattern of its converter."""
        self._converters: dict[str, Any] = {}
        self._resolve({_plain_name(name) for name in self.names if ".lora_" not in name})

    def _resolve(self, known: set[str]) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

        mapping = get_model_conversion_mapping(self._hf)
        renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        self._converters = {pattern: entry for entry in converters for pattern in entry.source_patterns}
        wanted, prefix = dict.fromkeys(known, True), self._hf.base_model_prefix
        unread = []
        for stored in sorted(self._file_of, key=_natural):
            text = stored.replace("language_model.", "", 1)
            text = text.removeprefix("model.") if text.startswith("model.model.") else text
            name, pattern = text, None
            if text not in known:
                name, pattern = rename_source_key(text, renamings, converters, prefix, wanted)
            if name in known:
                self._sources.setdefault(name, []).append((stored, pattern))
            elif not _IDLE.search(stored) and not _OF_IMAGES.search(stored):
                unread.append(stored)
        if unread:
            raise self._missing(
                f"has tensors that this model lacks: {name_first(unread, MOST_NAMED)} [SL-tensors-unknown]"
            )

    def tensor(self, name: str) -> Tensor:
        if ".lora_" in name:
            return self._fresh.tensor(name)
        plain, wanted = _plain_name(name), self.shape(name)
        sources = self._sources.get(plain)
        if not sources:
            raise self._missing(f"lacks the tensor {plain} [SL-tensor-absent]")
        stored, pattern = sources[0]
        whole = self._read(stored) if pattern is None else self._convert(name, sources)
        if tuple(whole.shape) != wanted:
            raise self._missing(
                f"{stored} has the shape {tuple(whole.shape)}, expected {wanted} [SL-tensor-shape]"
            )
        return whole.float()

    def _convert(self, name: str, sources: list[tuple[str, str | None]]) -> Tensor:
        """Assemble a parameter in the same way as transformers."""
        plain = _plain_name(name)
        converter = copy.deepcopy(self._converters[str(sources[0][1])])
        for stored, pattern in sources:
            converter.add_tensor(plain, stored, pattern, partial(self._read, stored))
        try:
            made = converter.convert(plain, model=self._hf, config=self._hf.config)[plain]
        except Exception as failure:  # a piece has another shape
            raise self._missing(
                f"{sources[0][0]} and others do not combine to {plain}: {failure} [SL-tensor-pieces]"
            ) from failure
        whole: Tensor = made[0] if isinstance(made, list) else made
        if tuple(whole.shape) != self.shape(name):  # a piece is missing
            raise self._missing(
                f"pieces of {plain} combine to {tuple(whole.shape)}, expected {self.shape(name)} "
                "[SL-tensor-piece-absent]"
            )
        return whole

    def _read(self, stored: str) -> Tensor:
        file = self._file_of[stored]
        try:
            if file not in self._open:
                self._open[file] = safe_open(self._folder / file, framework="pt")
            tensor: Tensor = self._open[file].get_tensor(stored)
        except Exception as failure:  # safetensors raises its own error class in addition to OSError
            raise _unreadable(self._named, file, failure) from failure
        return tensor

    def _missing(self, what: str) -> DataMissing:
        return DataMissing(f"{self._named}: {what}")


def _plain_name(name: str) -> str:
    """Return transformers' name of a parameter."""
    return name.removeprefix("hf.").replace(".base_layer.", ".")


def _natural(name: str) -> list[int | str]:
    """Order experts by number: 10 after 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _read_index(folder: Path, named: str) -> dict[str, str]:
    """Return the file of each tensor, from the index if it exists, else from the files' headers."""
    path = folder / "model.safetensors.index.json"
    try:
        if path.exists():
            return dict(json.loads(path.read_text())["weight_map"])
        files: dict[str, str] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as opened:
                files |= dict.fromkeys(opened.keys(), path.name)
    except Exception as failure:  # errors of safetensors, the disk or JSON
        raise _unreadable(named, path.name, failure) from failure
    if not files:
        raise DataMissing(no_weights(named))
    return files


def _unreadable(named: str, file: str, failure: Exception) -> DataMissing:
    """Return the error for a file of weights; `named` is the setting that names it."""
    return DataMissing(f"{named}: {file} cannot be read: {failure} [SL-weights-unreadable]")


def _fetch_weights(source: str, named: str) -> Path:
    """Return the folder of a hub id's weights, from the cache or the hub."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=["*.safetensors", "*.safetensors.index.json"]))
    except Exception as failure:  # network, disk or unknown model
        raise DataMissing(
            f"{named}: cannot fetch the weights of {source} from the hub or its cache in HF_HOME; "
            f"set TRAINER_MODEL_PATH to use a folder: {failure} [SL-weights-unfetched]"
        ) from failure


def open_weights(config: Config, decoder: Decoder) -> Weights:
    """Return fresh weights by the seed, or a reader for `model_path` or the hub; no tensor is read yet.

    Args:
        decoder: whole, on any device: provides names and shapes.

    Raises:
        DataMissing: the files are not available.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in decoder.named_parameters()}
    deviation = getattr(decoder.hf.config, "initializer_range", None) or STANDARD_DEVIATION
    fresh = RandomWeights(shapes, config.seed, read_constants(decoder), deviation)
    if config.init == "scratch":
        return fresh
    folder = (
        Path(config.model_path) if config.model_path else _fetch_weights(hub_id(config), config.model_setting)
    )
    return SafetensorsWeights(folder, fresh, decoder.hf, config.model_setting)


def read_weights(config: Config) -> dict[str, Tensor]:
    """Return all tensors of the *.safetensors in `model_path`.

    Raises:
        DataMissing: a file or the folder cannot be read.
    """
    state: dict[str, Tensor] = {}
    try:
        files = sorted(Path(config.model_path).glob("*.safetensors"))
    except OSError as failure:  # the folder itself
        raise DataMissing(
            f"{config.model_setting}: cannot be read: {failure} [SL-weights-folder-unreadable]"
        ) from failure
    for path in files:
        try:
            state |= load_file(path)
        except Exception as failure:  # safetensors raises its own error class in addition to OSError
            raise _unreadable(config.model_setting, path.name, failure) from failure
    return state


def load_weights(
    config: Config,
    model: ImageClassifier,
    state: dict[str, Any],
    whole: bool = False,
    order: list[int] | None = None,
) -> None:
    """Copy `state` (names inside the core) into the model; a head of another size keeps its fresh weights.

    Args:
        whole: require the head too.
        order: index of each class in the classes of `state`. None = the classes differ, so the head keeps its
            fresh weights.

    Raises:
        DataMissing: a tensor of the body is missing or has another shape.
    """
    network = model.network()
    named_heads = tuple(f"{head}." for head in model.heads)
    heads = () if whole else named_heads
    wanted = network.state_dict()
    if order is None:
        state = {name: tensor for name, tensor in state.items() if not name.startswith(named_heads)}
    fits = {name: t for name, t in state.items() if name in wanted and wanted[name].shape == t.shape}
    if lost := sorted(name for name in wanted if name not in fits and not name.startswith(heads)):
        raise DataMissing(
            f"{config.model_setting} does not fit {config.model_name}: {len(lost)} tensors are missing or have "
            f"another shape, first {lost[0]} [SL-weights-differ]"
        )
    network.load_state_dict(fits, strict=False)
    if order and all(name in fits for name in wanted if name.startswith(named_heads)):
        reorder_head(network, model.heads, order)


@torch.no_grad()
def reorder_head(network: nn.Module, heads: list[str], order: list[int]) -> None:
    """Reorder the outputs of a network in place.

    Args:
        heads: names of the modules that produce the outputs.
        order: current index of each output.
    """
    if order == list(range(len(order))):
        return
    for head in heads:
        *_, last = (
            module
            for module in network.get_submodule(head).modules()
            if isinstance(weight := getattr(module, "weight", None), Tensor) and len(weight) == len(order)
        )
        for tensor in last.parameters(recurse=False):
            tensor.copy_(tensor[order].clone())

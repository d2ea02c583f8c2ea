"""Language modelling: predict the next token of the answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from stratlab_spec.models.decoder import (
    DecoderShape,
    count_flops_per_token,
    count_forward_flops_per_token,
    count_parameters,
)
from stratlab_spec.models.teacher import naming_the_teacher, teacher_config, teacher_problems
from stratlab_spec.settings.config import Config, ConfigError
from trainer.data.batches import Batch, Share, build_text_batch, text_evaluation_batches
from trainer.data.text.token_rows import open_text
from trainer.distributed.world import Precision
from trainer.hang_detection.heartbeat import Pulse
from trainer.hang_detection.rank_zero_task import do_alone, leave_alone
from trainer.models.decoder import Decoder, find_decoder
from trainer.models.decoder_build import build_decoder
from trainer.models.model_with_loss import Learner
from trainer.models.packing import Bounds
from trainer.models.teacher import Teacher, place_teacher
from trainer.models.weights import Weights, open_weights
from trainer.tasks import Split, Task
from trainer.tasks.evaluation import Evaluation, add_up_split, do_nothing, read_language_modelling


class TextTask(Task):
    """The token rows of a run, memory-mapped from files, with their model and measures."""

    def __init__(self, config: Config, share: Share, device: str) -> None:
        self._data = data = open_text(config)
        self._teacher_shape: DecoderShape | None = None
        facts = {
            "seq_len": config.seq_len,
            "data_sha256": data.sha256,
            "tokenizer_sha256": data.tokenizer_sha256,
            "text": data.facts,
        }
        super().__init__(config, share, device, (data.train, data.validation, data.test), facts)

    @property
    def model_facts(self) -> dict[str, Any]:
        return {"tokenizer": self._data.tokenizer}

    def build_model(self, empty: bool) -> Learner:
        return self._build(self._config, empty)

    def _build(self, config: Config, empty: bool) -> Decoder:
        splits = (self._data.train, self._data.validation, self._data.test)
        bounds = Bounds(
            documents=max(rows.most_documents() for rows in splits),
            longest=max(rows.longest_document() for rows in splits),
        )
        return build_decoder(config, empty=empty, bounds=bounds if config.packing else None)

    def build_teacher(self, precision: Precision, pulse: Pulse, teaches: bool) -> Teacher | None:
        config = self._config
        if not config.teacher:
            return None
        if problems := teacher_problems(config):
            raise ConfigError(problems)
        asked = teacher_config(config)
        with naming_the_teacher(config):
            empty = build_decoder(asked, empty=True)
            shape = self._teacher_shape = empty.shape
            weights = open_weights(asked, empty)
        with leave_alone(pulse):  # reading files takes time without progress
            found = hash_weights_by_name(weights, weights.names, dist.get_rank(), dist.get_world_size())
        self.teacher_facts = {
            "teacher_sha256": found,
            "teacher_parameters": count_parameters(shape),
            "teacher_flops_per_sample": count_forward_flops_per_token(shape, config.seq_len, causal=True)
            * config.seq_len,
        }
        if not teaches:
            return None
        with naming_the_teacher(config):
            built = self._build(asked, empty=False)
        placed = place_teacher(built, self._device, precision.teacher_dtype)
        return Teacher(placed, config.distill_temperature, config.distill_alpha)

    def hash_weights(self, model: nn.Module, pulse: Pulse) -> str:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        found = do_alone(
            "hashing the initial weights",
            lambda: "" if any(p.is_meta for p in model.parameters()) else hash_of_state(model),
            pulse,
            self._config.collective_timeout_s,
        )
        if found:
            return found
        # no rank holds the whole model, so every rank hashes a part of its sources
        weights = open_weights(self._config, find_decoder(model))
        return hash_weights_by_name(weights, [name for name, _ in model.named_parameters()], rank, ranks)

    def cost(self, model: nn.Module) -> dict[str, Any]:
        lora, seq_len, teacher = self._config.lora_rank > 0, self._config.seq_len, self._teacher_shape
        shape = find_decoder(model).shape
        per_token = {
            name: count_flops_per_token(shape, seq_len, causal=causal, lora=lora)
            + (count_forward_flops_per_token(teacher, seq_len, causal=causal) if teacher else 0.0)
            for name, causal in (("flops_per_token", True), ("flops_per_token_literature", False))
        }
        return {"flops_per_sample": per_token["flops_per_token"] * self._config.seq_len, **per_token}

    def next_batch(self, step: int) -> Batch:
        sizes = (self._config.global_batch_size, self._config.micro_batch_size)
        return build_text_batch(self._data.train, self._order, step, *sizes, self._share, self._device)

    def measure(
        self,
        evaluate: Callable[[Tensor, Tensor], Tensor],
        split: Split,
        after_batch: Callable[[], None] = do_nothing,
    ) -> Evaluation:
        rows = self._data.validation if split == "validation" else self._data.test
        size = self._config.micro_batch_size
        batches = text_evaluation_batches(rows, size, self._share, self._device)
        return read_language_modelling(add_up_split(evaluate, batches, after_batch), len(rows))


def hash_weights_by_name(weights: Weights, names: Sequence[str], rank: int, world_size: int) -> str:
    """Return the sha256 over all parameters, equal on every rank and for every number of ranks.

    Collective: one rank hashes each parameter.
    """
    lines = [_line(name, weights.tensor(name)) for name in names[rank::world_size]]
    if world_size == 1:
        return _hash_lines(lines)
    gathered: list[Any] = [None] * world_size
    dist.all_gather_object(gathered, lines)
    return _hash_lines(line for part in gathered for line in part)


def hash_of_state(model: nn.Module) -> str:
    """Return the hash of `hash_weights_by_name` for a whole model in memory."""
    return _hash_lines(_line(name, parameter.detach()) for name, parameter in model.named_parameters())


def _line(name: str, tensor: Tensor) -> str:
    content = tensor.float().cpu().contiguous().view(-1).numpy()
    return f"{name} {tuple(tensor.shape)} {hashlib.sha256(content).hexdigest()}"


def _hash_lines(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()

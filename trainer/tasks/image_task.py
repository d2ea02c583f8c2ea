"""Image classification: which of so many classes an image shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from stratlab_spec.models.model_specs import default_image_size, hash_names
from stratlab_spec.models.teacher import naming_the_teacher, teacher_config, teacher_problems
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.rules import CLASS_NAMES_SHA256
from trainer.data import open_data
from trainer.data.batches import Batch, SampleOrder, Share, build_batch, evaluation_batches
from trainer.data.image_checks import check_classes
from trainer.data.placement import Source, build_source, resolve_residence
from trainer.distributed.provenance import hash_weights
from trainer.distributed.world import Precision
from trainer.engine import Engine
from trainer.hang_detection.heartbeat import Pulse
from trainer.hang_detection.rank_zero_task import do_alone
from trainer.models import build_model
from trainer.models.batch_norm import average_running_statistics
from trainer.models.model_with_loss import Learner
from trainer.models.teacher import Teacher, place_teacher
from trainer.tasks.evaluation import Evaluation, add_up_split, do_nothing, open_judge, read_classification
from trainer.tasks.normalization import find_preprocessing, find_rescaling


class ImageTask:
    """The images of a run and what is done with them; see trainer/tasks/__init__.py."""

    def __init__(self, config: Config, share: Share, device: str) -> None:
        self._how = how = find_preprocessing(config)
        image_size = config.image_size or how.image_size or default_image_size(config)
        data = open_data(config, image_size)
        if config.normalization == "imagenet" and config.init == "scratch" and data.channels != len(how.mean):
            raise ConfigError(
                f"TRAINER_NORMALIZATION=imagenet: has {len(how.mean)} channels, the images of "
                f"{config.dataset_name} have {data.channels}; leave it out [SL-normalization-channels]"
            )
        self._config, self._share, self._device = config, share, device
        self._data, self._image_size = data, image_size
        self._order = SampleOrder(config.seed, len(data.train))
        self._source: Source | None = None
        self._residence = resolve_residence(config.data_residence, data.train, torch.device(device).type)
        self.train_samples = len(data.train)
        self.teacher_facts: dict[str, Any] = {}
        self.facts: dict[str, Any] = {
            "train_samples": len(data.train),
            "validation_samples": len(data.validation),
            "test_samples": len(data.test),
            "num_labels": len(data.class_names),
            CLASS_NAMES_SHA256: hash_names(data.class_names),
            "image_size": image_size,
            "image_channels": data.channels,
            "data_sha256": data.sha256,
            "data_residence": self._residence,
            "preprocessing": how.as_dict(),
        }

    @property
    def model_facts(self) -> dict[str, Any]:
        return {
            "image_size": self._image_size,
            "channels": self._data.channels,
            "num_labels": len(self._data.class_names),
            "class_names": self._data.class_names,
            "preprocessing": self._how,
        }

    @property
    def order_sha256(self) -> str:
        return self._order.sha256

    @property
    def held_bytes(self) -> int:
        return self._source.held_bytes if self._source else 0

    def build_model(self, empty: bool) -> Learner:
        return build_model(
            self._config,
            image_size=self._image_size,
            channels=self._data.channels,
            num_labels=len(self._data.class_names),
            empty=empty,
            class_names=self._data.class_names,
        )

    def build_teacher(self, precision: Precision, pulse: Pulse, teaches: bool) -> Teacher | None:
        config = self._config
        if not config.teacher:
            return None
        names, channels = self._data.class_names, self._data.channels
        if problems := teacher_problems(config, names, channels):
            raise ConfigError(problems)
        asked = teacher_config(config)
        with naming_the_teacher(config):
            model = build_model(
                asked,
                image_size=self._image_size,
                channels=channels,
                num_labels=len(names),
                whole=True,
                class_names=names,
            )
        self.teacher_facts = {
            "teacher_sha256": self._hash("hashing the teacher", model, pulse),
            "teacher_parameters": sum(p.numel() for p in model.parameters()),
            "teacher_flops_per_sample": sum(model.forward_flops),
        }
        rescale = find_rescaling(self._how, find_preprocessing(asked))
        placed = place_teacher(model, self._device, precision.teacher_dtype)
        return Teacher(placed, config.distil_temperature, config.distil_weight, rescale)

    def hash_weights(self, model: nn.Module, pulse: Pulse) -> str:
        return self._hash("hashing the initial weights", model, pulse)

    def _hash(self, what: str, model: nn.Module, pulse: Pulse) -> str:
        return do_alone(what, lambda: hash_weights(model), pulse, self._config.collective_timeout_s)

    def cost(self, model: nn.Module) -> dict[str, Any]:
        teacher = self.teacher_facts.get("teacher_flops_per_sample", 0.0)
        return {"flops_per_sample": model.flops_per_sample + teacher}

    def start(self, done_steps: int) -> None:
        self._source = build_source(self._data.train, self._residence, self._device)
        for step in range(1, done_steps + 1):  # the hash of the order covers the whole run
            self._order.batch(step, self._config.global_batch_size)

    def next_batch(self, step: int) -> Batch:
        assert self._source is not None, "not started"
        return build_batch(
            self._source, self._order, step, self._config, self._share, self._device, self._how
        )

    def evaluate(
        self, engine: Engine, split: str, after_batch: Callable[[], None] = do_nothing
    ) -> Evaluation:
        average_running_statistics(engine.module)
        images = self._data.validation if split == "validation" else self._data.test
        batches = evaluation_batches(images, self._config, self._share, self._device, self._how)
        sums = add_up_split(engine.evaluate, batches, after_batch)
        return read_classification(sums, self._data.class_names)

    def judge(self) -> tuple[Evaluation, dict[str, Any]]:
        check_classes(self._config, self._data)
        model = self.build_model(empty=False)
        judge, facts = open_judge(self._config, model, self._device)
        batches = evaluation_batches(self._data.test, self._config, self._share, self._device, self._how)
        return read_classification(add_up_split(judge, batches), self._data.class_names), facts | self.cost(
            model
        )

"""Image classification: predict the class of an image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from stratlab_spec.models.model_specs import default_image_size, hash_names
from stratlab_spec.models.teacher import naming_the_teacher, teacher_config, teacher_problems
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.rules import CLASS_NAMES_SHA256
from trainer.data import open_data
from trainer.data.batches import Batch, Share, build_batch, evaluation_batches
from trainer.data.files import check_classes
from trainer.data.placement import ImageSource, build_source, resolve_residence
from trainer.distributed.world import Precision
from trainer.engine import Engine
from trainer.hang_detection.heartbeat import Pulse
from trainer.hang_detection.rank_zero_task import do_alone
from trainer.models import build_model
from trainer.models.batch_norm import average_running_statistics
from trainer.models.model_with_loss import ImageClassifier, Learner
from trainer.models.teacher import Teacher, place_teacher
from trainer.run import hash_weights
from trainer.tasks import Split, Task
from trainer.tasks.evaluation import Evaluation, add_up_split, do_nothing, read_classification
from trainer.tasks.normalization import find_preprocessing, find_rescaling


class ImageTask(Task):
    """The images of a run with their model and measures."""

    def __init__(self, config: Config, share: Share, device: str) -> None:
        self._how = how = find_preprocessing(config)
        image_size = config.image_size or how.image_size or default_image_size(config)
        data = open_data(config, image_size)
        if config.normalization == "imagenet" and config.init == "scratch" and data.channels != len(how.mean):
            raise ConfigError(
                f"TRAINER_NORMALIZATION=imagenet: has {len(how.mean)} channels, but the images of "
                f"{config.dataset_name} have {data.channels}; remove the setting [SL-normalization-channels]"
            )
        self._data, self._image_size = data, image_size
        self._source: ImageSource | None = None
        self._residence = resolve_residence(config.data_residence, data.train, torch.device(device).type)
        facts = {
            "num_labels": len(data.class_names),
            CLASS_NAMES_SHA256: hash_names(data.class_names),
            "image_size": image_size,
            "image_channels": data.channels,
            "data_sha256": data.sha256,
            "data_residence": self._residence,
            "preprocessing": how.as_dict(),
        }
        super().__init__(config, share, device, (data.train, data.validation, data.test), facts)

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
    def held_bytes(self) -> int:
        return self._source.held_bytes if self._source else 0

    def build_model(self, empty: bool) -> Learner:
        return self._build(self._config, empty=empty)

    def _build(self, config: Config, **how: bool) -> ImageClassifier:
        names, channels = self._data.class_names, self._data.channels
        sizes: Any = {"image_size": self._image_size, "channels": channels, "num_labels": len(names)}
        return build_model(config, **sizes, **how, class_names=names)

    def build_teacher(self, precision: Precision, pulse: Pulse, teaches: bool) -> Teacher | None:
        config = self._config
        if not config.teacher:
            return None
        if problems := teacher_problems(config, self._data.class_names, self._data.channels):
            raise ConfigError(problems)
        asked = teacher_config(config)
        with naming_the_teacher(config):
            model = self._build(asked, whole=True)
        self.teacher_facts = {
            "teacher_sha256": self._hash("hashing the teacher", model, pulse),
            "teacher_parameters": sum(p.numel() for p in model.parameters()),
            "teacher_flops_per_sample": sum(model.forward_flops),
        }
        rescale = find_rescaling(self._how, find_preprocessing(asked))
        placed = place_teacher(model, self._device, precision.teacher_dtype)
        return Teacher(placed, config.distill_temperature, config.distill_alpha, rescale)

    def hash_weights(self, model: nn.Module, pulse: Pulse) -> str:
        return self._hash("hashing the initial weights", model, pulse)

    def _hash(self, what: str, model: nn.Module, pulse: Pulse) -> str:
        return do_alone(what, lambda: hash_weights(model), pulse, self._config.collective_timeout_s)

    def cost(self, model: nn.Module) -> dict[str, Any]:
        teacher = self.teacher_facts.get("teacher_flops_per_sample", 0.0)
        return {"flops_per_sample": model.flops_per_sample + teacher}

    def start(self, done_steps: int) -> None:
        self._source = build_source(self._data.train, self._residence, self._device)
        super().start(done_steps)

    def next_batch(self, step: int) -> Batch:
        assert self._source is not None, "not started"
        return build_batch(
            self._source, self._order, step, self._config, self._share, self._device, self._how
        )

    def measure(
        self,
        evaluate: Callable[[Tensor, Tensor], Tensor],
        split: Split,
        after_batch: Callable[[], None] = do_nothing,
    ) -> Evaluation:
        images = self._data.validation if split == "validation" else self._data.test
        batches = evaluation_batches(images, self._config, self._share, self._device, self._how)
        return read_classification(add_up_split(evaluate, batches, after_batch), self._data.class_names)

    def evaluate(
        self, engine: Engine, split: Split, after_batch: Callable[[], None] = do_nothing
    ) -> Evaluation:
        average_running_statistics(engine.module)
        return super().evaluate(engine, split, after_batch)

    def judge(self) -> tuple[Evaluation, dict[str, Any]]:
        check_classes(self._config, self._data)
        return super().judge()

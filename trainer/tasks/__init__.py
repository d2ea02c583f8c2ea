"""Define the task of a run: its data, model and measures. `open_task` picks one of the two kinds, one file each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence, Sized
from typing import Any, Literal

from torch import Tensor, nn

from stratlab_spec.settings.config import Config
from trainer.data.batches import Batch, SampleOrder, Share
from trainer.distributed.world import Precision
from trainer.engine import Engine
from trainer.hang_detection.heartbeat import Pulse
from trainer.models.model_with_loss import Learner
from trainer.tasks.evaluation import Evaluation, do_nothing, open_judge

Split = Literal["validation", "test"]


class Task(ABC):
    """Image classification or a language model, with its data open on this rank.

    Args:
        share: this rank's part of every batch.
        splits: the training, the validation and the test split.
        facts: facts of the data for `resolved` in config.json.
    """

    def __init__(
        self, config: Config, share: Share, device: str, splits: Sequence[Sized], facts: dict[str, Any]
    ) -> None:
        self._config, self._share, self._device = config, share, device
        names = ("train_samples", "validation_samples", "test_samples")
        self.facts: dict[str, Any] = dict(zip(names, map(len, splits), strict=True)) | facts
        self.train_samples = len(splits[0])
        self.teacher_facts: dict[str, Any] = {}
        """Facts of the teacher for `resolved` once it is built: origin and number of its weights; empty without one."""
        self._order = SampleOrder(config.seed, self.train_samples)

    @property
    @abstractmethod
    def model_facts(self) -> dict[str, Any]:
        """Return the facts that the exporter writes next to the weights."""

    @property
    def order_sha256(self) -> str:
        """Return the hash of the order of all samples used so far."""
        return self._order.sha256

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the data set in the memory of the device that computes."""
        return 0

    @abstractmethod
    def build_model(self, empty: bool) -> Learner:
        """Return the model, including its loss, with its initial weights; without weights if `empty`."""

    @abstractmethod
    def build_teacher(self, precision: Precision, pulse: Pulse, teaches: bool) -> Any:
        """Return the teacher on this rank's device (trainer/models/teacher.py), or None; collective.

        Args:
            teaches: whether this rank computes a loss; the others get None.

        Raises:
            ConfigError, DataMissing: the teacher does not fit or does not exist.
        """

    @abstractmethod
    def hash_weights(self, model: nn.Module, pulse: Pulse) -> str:
        """Return the hash of the initial weights, equal for every strategy and world size; collective."""

    @abstractmethod
    def cost(self, model: nn.Module) -> dict[str, Any]:
        """Return the FLOPs of training, including the teacher's forward pass, for `resolved` in config.json."""

    def start(self, done_steps: int) -> None:
        """Prepare the training split for batches after `done_steps`; those steps count in `order_sha256`."""
        for step in range(1, done_steps + 1):  # the hash of the order covers the whole run
            self._order.batch(step, self._config.global_batch_size)

    @abstractmethod
    def next_batch(self, step: int) -> Batch:
        """Return this rank's share of the batch of `step`."""

    @abstractmethod
    def measure(
        self,
        evaluate: Callable[[Tensor, Tensor], Tensor],
        split: Split,
        after_batch: Callable[[], None] = do_nothing,
    ) -> Evaluation:
        """Evaluate a split with `evaluate`, a method of the engine or a model; collective.

        Args:
            after_batch: called after each batch, equally often on every rank.
        """

    def evaluate(
        self, engine: Engine, split: Split, after_batch: Callable[[], None] = do_nothing
    ) -> Evaluation:
        """Evaluate the model inside the engine; collective. `after_batch` is passed to `measure`."""
        return self.measure(engine.evaluate, split, after_batch)

    def judge(self) -> tuple[Evaluation, dict[str, Any]]:
        """Evaluate the weights of `model_path` on the test split, with the whole model on each rank.

        Collective if there are several ranks. Also returns facts of the model.

        Raises:
            ConfigError, DataMissing: the weights do not fit or do not exist.
        """
        model = self.build_model(empty=False)
        judge, facts = open_judge(self._config, model, self._device)
        return self.measure(judge, "test"), facts | self.cost(model)


def open_task(config: Config, share: Share, device: str) -> Task:
    """Return the task of these settings with open data.

    Args:
        share: this rank's part of every batch.

    Raises:
        ConfigError, DataMissing: the data does not fit or does not exist.
    """
    if config.is_text:
        from trainer.tasks.text_task import TextTask

        return TextTask(config, share, device)
    from trainer.tasks.image_task import ImageTask

    return ImageTask(config, share, device)

"""What is learnt, apart from how: data, model and measure of a run. One file per kind; this one picks."""

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
        share: which part of every batch is this rank's.
        splits: the training, the validation and the test split.
        facts: of the data, for `resolved` in config.json.
    """

    def __init__(
        self, config: Config, share: Share, device: str, splits: Sequence[Sized], facts: dict[str, Any]
    ) -> None:
        self._config, self._share, self._device = config, share, device
        names = ("train_samples", "validation_samples", "test_samples")
        self.facts: dict[str, Any] = dict(zip(names, map(len, splits), strict=True)) | facts
        self.train_samples = len(splits[0])
        self.teacher_facts: dict[str, Any] = {}
        """Of the teacher for `resolved`, when it has been built: whose weights, how many; empty without one."""
        self._order = SampleOrder(config.seed, self.train_samples)

    @property
    @abstractmethod
    def model_facts(self) -> dict[str, Any]:
        """What the exporter writes beside the weights."""

    @property
    def order_sha256(self) -> str:
        """Of all samples handed out so far, in their order."""
        return self._order.sha256

    @property
    def held_bytes(self) -> int:
        """Of the data set, in the memory of the device that computes."""
        return 0

    @abstractmethod
    def build_model(self, empty: bool) -> Learner:
        """The model, which knows its loss, with the weights that training starts from; without any where `empty`."""

    @abstractmethod
    def build_teacher(self, precision: Precision, pulse: Pulse, teaches: bool) -> Any:
        """Whom the model learns from, on this rank's device (trainer/models/teacher.py), or None; collective.

        Args:
            teaches: whether this rank computes a loss; the others get None.

        Raises:
            ConfigError, DataMissing: a teacher that does not fit, or is not there.
        """

    @abstractmethod
    def hash_weights(self, model: nn.Module, pulse: Pulse) -> str:
        """Of the weights that training starts from, equal for every strategy and world size; collective."""

    @abstractmethod
    def cost(self, model: nn.Module) -> dict[str, Any]:
        """Floating-point operations of training, with the teacher's forward pass, for `resolved` in config.json."""

    def start(self, done_steps: int) -> None:
        """Makes the training split ready for batches behind `done_steps`, which count in `order_sha256`."""
        for step in range(1, done_steps + 1):  # the hash of the order covers the whole run
            self._order.batch(step, self._config.global_batch_size)

    @abstractmethod
    def next_batch(self, step: int) -> Batch:
        """This rank's share of the batch of `step`."""

    @abstractmethod
    def measure(
        self,
        evaluate: Callable[[Tensor, Tensor], Tensor],
        split: Split,
        after_batch: Callable[[], None] = do_nothing,
    ) -> Evaluation:
        """What `evaluate`, the engine's or a model's, says of a split; collective.

        Args:
            after_batch: called behind each batch, equally often on every rank.
        """

    def evaluate(
        self, engine: Engine, split: Split, after_batch: Callable[[], None] = do_nothing
    ) -> Evaluation:
        """Measures the model inside the engine; collective. `after_batch`: as of `measure`."""
        return self.measure(engine.evaluate, split, after_batch)

    def judge(self) -> tuple[Evaluation, dict[str, Any]]:
        """The test split under the weights of `model_path`, held whole by each rank, and facts of the model;
        collective if there are ranks.

        Raises:
            ConfigError, DataMissing: weights that do not fit, or are not there.
        """
        model = self.build_model(empty=False)
        judge, facts = open_judge(self._config, model, self._device)
        return self.measure(judge, "test"), facts | self.cost(model)


def open_task(config: Config, share: Share, device: str) -> Task:
    """The task of these settings, its data open.

    Args:
        share: as of `Task`.

    Raises:
        ConfigError, DataMissing: data that does not fit, or is not there.
    """
    if config.is_text:
        from trainer.tasks.text_task import TextTask

        return TextTask(config, share, device)
    from trainer.tasks.image_task import ImageTask

    return ImageTask(config, share, device)

"""What is learnt, apart from how: data, model and measure of a run. One file per kind; this one picks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from torch import nn

from stratlab_spec.settings.config import Config
from trainer.data.batches import Batch, Share
from trainer.distributed.world import Precision
from trainer.engine import Engine
from trainer.hang_detection.heartbeat import Pulse
from trainer.models.model_with_loss import Learner
from trainer.tasks.evaluation import Evaluation, do_nothing

Split = Literal["validation", "test"]


class Task(Protocol):
    """Image classification or a language model, with its data open on this rank."""

    train_samples: int
    facts: dict[str, Any]
    """Of the data, for `resolved` in config.json."""

    @property
    def model_facts(self) -> dict[str, Any]:
        """What the exporter writes beside the weights."""

    @property
    def order_sha256(self) -> str:
        """Of all samples handed out so far, in their order."""

    @property
    def held_bytes(self) -> int:
        """Of the data set, in the memory of the device that computes."""

    def build_model(self, empty: bool) -> Learner:
        """The model, which knows its loss, with the weights that training starts from; without any where `empty`."""

    def build_teacher(self, precision: Precision, pulse: Pulse, teaches: bool) -> Any:
        """Whom the model learns from, on this rank's device (trainer/models/teacher.py), or None; collective.

        Args:
            teaches: whether this rank computes a loss; the others get None.

        Raises:
            ConfigError, DataMissing: a teacher that does not fit, or is not there.
        """

    @property
    def teacher_facts(self) -> dict[str, Any]:
        """For `resolved` in config.json, when it has been built: whose weights, how many; empty without one."""

    def hash_weights(self, model: nn.Module, pulse: Pulse) -> str:
        """Of the weights that training starts from, equal for every strategy and world size; collective."""

    def cost(self, model: nn.Module) -> dict[str, Any]:
        """Floating-point operations of training, with the teacher's forward pass, for `resolved` in config.json."""

    def start(self, done_steps: int) -> None:
        """Makes the training split ready for batches behind `done_steps`, which count in `order_sha256`."""

    def next_batch(self, step: int) -> Batch:
        """This rank's share of the batch of `step`."""

    def evaluate(
        self, engine: Engine, split: Split, after_batch: Callable[[], None] = do_nothing
    ) -> Evaluation:
        """Measures the model inside the engine; collective.

        Args:
            after_batch: called behind each batch, equally often on every rank.
        """

    def judge(self) -> tuple[Evaluation, dict[str, Any]]:
        """The test split under the weights of `model_path`, held whole by each rank, and facts of the model;
        collective if there are ranks.

        Raises:
            ConfigError, DataMissing: weights that do not fit, or are not there.
        """


def open_task(config: Config, share: Share, device: str) -> Task:
    """The task of these settings, its data open.

    Args:
        share: which part of every batch is this rank's.

    Raises:
        ConfigError, DataMissing: data that does not fit, or is not there.
    """
    if config.is_text:
        from trainer.tasks.text_task import TextTask

        return TextTask(config, share, device)
    from trainer.tasks.image_task import ImageTask

    return ImageTask(config, share, device)

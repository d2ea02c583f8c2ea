"""What all models share: their costs, their repeated parts, and where the network lies that is known elsewhere."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from trainer.models.learner import ClassLoss, Learner


class ForwardFlops(NamedTuple):
    """Floating-point operations of one image's forward pass; an addition and a multiplication are two."""

    weights: float
    """Matrix products and convolutions with a weight, the head left out."""
    products: float = 0.0
    """Matrix products of two activations: the attention's."""

    def training(self) -> float:
        """Forward and backward: a backward pass has the gradients of both factors to compute."""
        return 3.0 * (self.weights + self.products)

    def frozen(self) -> float:
        """The same without the weights' gradients ("4N" of LoRA); the adapters' own share is left out."""
        return 2.0 * self.weights + 3.0 * self.products


class ImageClassifier(Learner):
    """Predicts from float images [batch, channel, height, width] the logits [batch, class]."""

    step_measures = ClassLoss.step_measures
    core = ""
    """Name of the submodule that others know by its own names (transformers', torchvision's); "" = the model."""
    loss: nn.Module
    """(logits, labels) -> (sum of the losses, measures); has no parameters."""
    heads: list[str]
    """Names, inside the core, of the modules that depend on the number of classes."""
    flops_per_sample: float

    def score(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Images and labels -> what the loss says of their logits."""
        # the teacher first: what it needs on the way is gone before the student keeps anything
        taught = self.teacher.answer(inputs) if self.teacher and self.training else None
        found: tuple[Tensor, Tensor] = self.loss(self.predict(inputs), labels, taught)
        return found

    def set_flops(self, forward: ForwardFlops) -> None:
        """Sets what a training step costs per image."""
        self.forward_flops = forward
        self.flops_per_sample = forward.training()

    def network(self) -> nn.Module:
        """The core itself."""
        return self.get_submodule(self.core)


def find_classifier(model: nn.Module) -> ImageClassifier:
    """Our model inside whatever a strategy wrapped around it."""
    for module in model.modules():
        if isinstance(module, ImageClassifier):
            return module
    raise AssertionError("no model of this registry inside")


def repeat_channel(images: Tensor, channels: int) -> Tensor:
    """One grey channel as `channels` equal ones; a view, nothing is copied."""
    return images.expand(-1, channels, -1, -1)


def wrong_channels(name: str, wanted: int, channels: int) -> str:
    """The sentence for images whose channels do not fit the weights (one grey channel is repeated instead)."""
    return (
        f"TRAINER_INIT='pretrained': the weights of {name} take {wanted} channels, the images have {channels} "
        "[SL-channels-differ]"
    )

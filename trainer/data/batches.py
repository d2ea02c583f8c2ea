"""Build this rank's micro-batches of images or text on its device.

`SampleOrder` decides which samples a step gets; the order depends only on the seed, the number of samples and the
position. `Share` is this rank's part of the global batch. `build_batch` and `build_text_batch` load that part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from stratlab_spec.models.model_specs import PLAIN, Preprocessing
from stratlab_spec.settings.config import Config
from trainer.data.augmentation import draw_looks, mix, prepare_images
from trainer.data.images import Images
from trainer.data.placement import ImageSource, StreamSource, to_device
from trainer.data.text.token_rows import IGNORED, TokenRows


class SampleOrder:
    """An endless sequence of epochs, each a permutation of all samples; a batch may span two epochs.

    The order does not depend on the world size: every strategy uses the same samples in the same step.
    """

    def __init__(self, seed: int, samples: int) -> None:
        self._seed = seed
        self._samples = samples
        self._permutations: dict[int, NDArray[np.int64]] = {}
        self._digest = hashlib.sha256()

    def _at(self, epoch: int) -> NDArray[np.int64]:
        if epoch not in self._permutations:
            while len(self._permutations) > 1:  # prefetching needs the next permutation too
                self._permutations.pop(min(self._permutations))
            random = np.random.default_rng([self._seed, epoch])
            self._permutations[epoch] = random.permutation(self._samples)
        return self._permutations[epoch]

    def indices(self, step: int, size: int) -> NDArray[np.int64]:
        """Return the `size` sample indices of `step` (from 1), without changing `sha256`."""
        position, end = (step - 1) * size, step * size
        parts = []
        while position < end:
            epoch, offset = divmod(position, self._samples)
            take = min(self._samples - offset, end - position)
            parts.append(self._at(epoch)[offset : offset + take])
            position += take
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def batch(self, step: int, size: int) -> NDArray[np.int64]:
        """Return the same indices and add them to `sha256`, because these samples are trained on."""
        indices = self.indices(step, size)
        self._digest.update(indices.tobytes())
        return indices

    @property
    def sha256(self) -> str:
        """Return the hash of all indices of `batch`; equal if two runs used the same samples in one order."""
        return self._digest.hexdigest()


STEPS_AHEAD = 2


@dataclass(frozen=True)
class Batch:
    """This rank's share of one optimizer step."""

    micro: list[tuple[Tensor, Tensor]]
    """(inputs, labels) per micro-batch.

    Images: float [m, channel, height, width] and int64 [m]; with mixup the labels are the shares of all classes,
    float [m, class]. Text: int64 [m, 2, token] (ids and positions within the document) and int64 [m, token], the next
    token or IGNORED.
    """
    global_samples: int
    """Samples of the step over all ranks."""
    global_labels: int
    """Labels of the step over all ranks (samples, or tokens of answers); the divisor of the loss."""
    tokens: int = 0
    """Text only: places in the rows of the step over all ranks, padding included."""
    useful_tokens: int = 0
    """Text only: places that hold a token of a document."""
    token_pairs: int = 0
    """Text only: sum of the documents' squared lengths over all ranks; causal attention computes half of them."""


@dataclass(frozen=True)
class Share:
    """This rank's part of a global batch: `rank` of `ranks` that train on different samples."""

    rank: int
    ranks: int


def build_batch(
    images: Images | ImageSource,
    order: SampleOrder,
    step: int,
    config: Config,
    share: Share,
    device: str,
    how: Preprocessing = PLAIN,
) -> Batch:
    """Return the micro-batches of `step` (from 1) for one rank: a contiguous share of the global batch.

    Images are resized to `images.image_size`, augmented and normalised on the device.
    """
    source = ImageSource(images, device) if isinstance(images, Images) else images
    indices = order.batch(step, config.global_batch_size)
    looks = draw_looks(config, step)

    def look_at(rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        stored, labels = source.load(indices[rows])
        return prepare_images(stored, config, source.images.image_size, how, looks.numbers[rows]), labels

    def build_micro(rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        own, labels = look_at(rows)
        if looks.partners is None:
            return own, labels
        other, other_labels = look_at(looks.partners[rows])
        own_share, classes = to_device(looks.own_share[rows], device), source.images.classes
        wanted, other_wanted = (F.one_hot(each, classes).float() for each in (labels, other_labels))
        return mix(own, other, own_share), mix(wanted, other_wanted, own_share)

    micro = [build_micro(rows) for rows in _micro_rows(share, config)]
    source.expect(_coming(order, step, config, share))
    return Batch(micro, config.global_batch_size, config.global_batch_size)


def _micro_rows(share: Share, config: Config) -> list[NDArray[np.int64]]:
    """Return the positions in the global batch, per micro-batch of this rank."""
    local, size = config.global_batch_size // share.ranks, config.micro_batch_size
    first = share.rank * local
    return [np.arange(first + i, first + min(i + size, local)) for i in range(0, local, size)]


def _coming(order: SampleOrder, step: int, config: Config, share: Share) -> Iterator[NDArray[np.int64]]:
    """Yield the indices that the next steps will load, in order; lazy, so unused entries do not take time."""
    for later in range(step + 1, step + 1 + STEPS_AHEAD):
        indices = order.indices(later, config.global_batch_size)
        partners = draw_looks(config, later).partners
        for rows in _micro_rows(share, config):
            yield indices[rows]
            if partners is not None:
                yield indices[partners[rows]]


def evaluation_batches(
    images: Images | ImageSource, config: Config, share: Share, device: str, how: Preprocessing = PLAIN
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (images, labels) without augmentation, the same number of batches on every rank; padding is IGNORED.

    Sharded strategies gather parameters in every forward pass, so all ranks must run the same number of batches.
    """
    if isinstance(images, Images):
        # prefetching helps only if decoding is slow: files on disk, each image read once
        source = StreamSource(images, device) if images.slow else ImageSource(images, device)
    else:
        source = images
    micro_size = config.micro_batch_size
    samples, per_round = len(source.images), micro_size * share.ranks
    starts = [start + share.rank * micro_size for start in range(0, samples, per_round)]
    wanted = [np.arange(start, start + micro_size) for start in starts]
    for i, rows in enumerate(wanted):
        inside = [np.minimum(later, samples - 1) for later in wanted[i : i + 1 + STEPS_AHEAD]]
        stored, labels = source.load(inside[0])
        source.expect(inside[1:])
        labels = labels.masked_fill(to_device(rows >= samples, device), IGNORED)
        yield prepare_images(stored, config, source.images.image_size, how), labels


def build_text_batch(
    rows: TokenRows,
    order: SampleOrder,
    step: int,
    global_size: int,
    micro_size: int,
    share: Share,
    device: str,
) -> Batch:
    """Return the micro-batches of `step` (from 1) for one rank: a contiguous share of the `global_size` rows.

    Label and token counts of the whole step come from stored counts, without communication between ranks.
    """
    indices = order.batch(step, global_size)
    local = global_size // share.ranks
    mine = indices[share.rank * local : (share.rank + 1) * local]
    micro = []
    for start in range(0, local, micro_size):
        inputs, labels = rows.rows(mine[start : start + micro_size])
        micro.append((to_device(inputs, device), to_device(labels, device)))
    return Batch(
        micro,
        global_samples=global_size,
        global_labels=rows.label_counts(indices),
        tokens=global_size * rows.seq_len,
        useful_tokens=rows.token_counts(indices),
        token_pairs=rows.pair_counts(indices),
    )


def text_evaluation_batches(
    rows: TokenRows, micro_size: int, share: Share, device: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (inputs, labels) of every row once over all ranks, equally many batches per rank, all of one shape.

    Places after the last row repeat the last row, without labels.
    """
    for start in range(0, len(rows), micro_size * share.ranks):
        wanted = start + share.rank * micro_size + np.arange(micro_size)
        inputs, labels = rows.rows(np.minimum(wanted, len(rows) - 1))
        labels[wanted >= len(rows)] = IGNORED
        yield to_device(inputs, device), to_device(labels, device)

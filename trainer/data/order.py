"""Which sample comes when: a function of the seed, the number of samples and the position, and of nothing else."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


class SampleOrder:
    """An endless row of epochs, each a permutation of all samples; batches may cross from one into the next.

    The world size does not appear: every strategy takes the same samples in the same step.
    """

    def __init__(self, seed: int, samples: int) -> None:
        self._seed = seed
        self._samples = samples
        self._epoch = -1
        self._permutation: NDArray[np.int64] = np.empty(0, np.int64)
        self._digest = hashlib.sha256()

    def _at(self, epoch: int) -> NDArray[np.int64]:
        if epoch != self._epoch:
            self._permutation = np.random.default_rng([self._seed, epoch]).permutation(self._samples)
            self._epoch = epoch
        return self._permutation

    def batch(self, step: int, size: int) -> NDArray[np.int64]:
        """Indices of the samples of `step` (from 1), `size` of them."""
        position, end = (step - 1) * size, step * size
        parts = []
        while position < end:
            epoch, offset = divmod(position, self._samples)
            take = min(self._samples - offset, end - position)
            parts.append(self._at(epoch)[offset : offset + take])
            position += take
        indices = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self._digest.update(indices.tobytes())
        return indices

    @property
    def sha256(self) -> str:
        """Of all indices handed out so far: equal if two runs saw the same samples in the same order."""
        return self._digest.hexdigest()

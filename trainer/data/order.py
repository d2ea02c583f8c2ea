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
        self._permutations: dict[int, NDArray[np.int64]] = {}
        self._digest = hashlib.sha256()

    def _at(self, epoch: int) -> NDArray[np.int64]:
        if epoch not in self._permutations:
            while len(self._permutations) > 1:  # looking ahead needs the next one too
                self._permutations.pop(min(self._permutations))
            random = np.random.default_rng([self._seed, epoch])
            self._permutations[epoch] = random.permutation(self._samples)
        return self._permutations[epoch]

    def indices(self, step: int, size: int) -> NDArray[np.int64]:
        """Indices of the samples of `step` (from 1), `size` of them; looking ahead leaves no trace."""
        position, end = (step - 1) * size, step * size
        parts = []
        while position < end:
            epoch, offset = divmod(position, self._samples)
            take = min(self._samples - offset, end - position)
            parts.append(self._at(epoch)[offset : offset + take])
            position += take
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def batch(self, step: int, size: int) -> NDArray[np.int64]:
        """The same, counted in `sha256`: these samples are trained on."""
        indices = self.indices(step, size)
        self._digest.update(indices.tobytes())
        return indices

    @property
    def sha256(self) -> str:
        """Of all indices handed out so far: equal if two runs saw the same samples in the same order."""
        return self._digest.hexdigest()

"""Provide the images of a split to a step: on the device from the start, or decoded just before use.

`resolve_residence` resolves `auto`: `device` if the whole split uses at most a twentieth of the device's memory, or on
a CPU if it fits into the 2 GiB cache. The limit is this project's choice: the data must not reduce the memory of a
strategy. `build_source` returns the source of that residence.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.images import CACHE_LIMIT_BYTES, Images

DEVICE_SHARE = 0.05
CHUNK = 1024  # images decoded per copy to the device
STREAM_THREADS = 2  # batches decoded at the same time; each uses the threads of its images

Loaded = tuple[Tensor, Tensor]
"""(uint8 [sample, channel, height, width], labels int64 [sample]) on the device."""


def resolve_residence(asked: str, images: Images, device_type: str) -> str:
    """Return `asked`, with `auto` resolved to `device` or `stream` by the size of split and device memory."""
    if asked != "auto":
        return asked
    if device_type == "cpu":
        limit = CACHE_LIMIT_BYTES
    else:
        _, total = torch.cuda.mem_get_info()
        limit = int(total * DEVICE_SHARE)
    return "device" if images.bytes_stored <= limit else "stream"


def build_source(images: Images, residence: str, device: str) -> ImageSource:
    """Return the split `images` under a resolved residence; `device` copies all of it immediately."""
    if residence == "stream":
        return StreamSource(images, device)
    return ImageSource(images, device) if device == "cpu" else DeviceSource(images, device)


class ImageSource:
    """Images decoded into host memory on first use, for a CPU that computes there."""

    def __init__(self, images: Images, device: str) -> None:
        self.images = images
        self._device = device

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the data set in the memory of the device that computes."""
        return self.images.bytes_cached

    def load(self, indices: NDArray[np.int64]) -> Loaded:
        """Return these samples on the device."""
        pixels, labels = self.images.pixels(indices), self.images.labels[indices]
        return to_device(pixels, self._device), to_device(labels, self._device)

    def expect(self, wanted: Iterable[NDArray[np.int64]]) -> None:
        """Announce the indices of the next calls of `load`; affects only their duration."""


class DeviceSource(ImageSource):
    """All images in the accelerator's memory; loading a batch is one gather."""

    def __init__(self, images: Images, device: str) -> None:
        super().__init__(images, device)
        self._pixels = torch.empty((len(images), *images.shape), dtype=torch.uint8, device=device)
        for start in range(0, len(images), CHUNK):
            chunk = np.arange(start, min(start + CHUNK, len(images)))
            self._pixels[start : start + len(chunk)] = torch.from_numpy(images.pixels(chunk)).to(device)
        self._labels = torch.from_numpy(images.labels).to(device)

    @property
    def held_bytes(self) -> int:
        return self._pixels.nbytes + self._labels.nbytes

    def load(self, indices: NDArray[np.int64]) -> Loaded:
        where = to_device(indices, self._pixels.device)
        return self._pixels[where], self._labels[where]


class StreamSource(ImageSource):
    """Decodes announced samples in background threads into pinned memory; others on demand."""

    def __init__(self, images: Images, device: str) -> None:
        super().__init__(images, device)
        self._threads = ThreadPoolExecutor(STREAM_THREADS, thread_name_prefix="stream")
        self._coming: dict[bytes, Future[Tensor]] = {}

    @property
    def held_bytes(self) -> int:
        return 0

    def load(self, indices: NDArray[np.int64]) -> Loaded:
        coming = self._coming.pop(indices.tobytes(), None)
        pixels = coming.result() if coming else self._decode(indices)
        labels = to_device(self.images.labels[indices], self._device)
        return pixels.to(self._device, non_blocking=True), labels

    def expect(self, wanted: Iterable[NDArray[np.int64]]) -> None:
        announced = {indices.tobytes(): indices for indices in wanted}
        for key in self._coming.keys() - announced.keys():  # the run jumped to another step
            self._coming.pop(key).cancel()
        for key, indices in announced.items():
            if key not in self._coming:
                self._coming[key] = self._threads.submit(self._decode, indices)

    def _decode(self, indices: NDArray[np.int64]) -> Tensor:
        return pinned(self.images.pixels(indices), self._device)


def to_device(array: NDArray[Any], device: Any) -> Tensor:
    """Copy an array to the device from pinned memory; a pageable copy would block the host."""
    return pinned(array, device).to(device, non_blocking=True)


def pinned(array: NDArray[Any], device: Any) -> Tensor:
    """Return an array as a tensor in pinned memory, which the device can copy asynchronously."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if torch.device(device).type == "cpu" else tensor.pin_memory()

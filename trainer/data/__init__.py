"""Open image data sets by name, with fixed splits and an order that is independent of strategy and world size."""

from __future__ import annotations

from stratlab_spec.settings.config import Config
from trainer.data.images import ImageData


def open_data(config: Config, image_size: int) -> ImageData:
    """Return the data set of a run, without importing torch.

    Args:
        image_size: edge in pixels to which the batches are resized later, on the device.

    Raises:
        ConfigError: the data set lacks a column that a setting names.
        DataMissing: the data set does not exist, or its images cannot be decoded.
    """
    if not config.dataset_path and config.dataset == "digits":
        from trainer.data.images import load_digits

        return load_digits(image_size, config.validation_fraction, config.train_samples)
    if not config.dataset_path and config.dataset == "synthetic":
        from trainer.data.images import load_synthetic

        return load_synthetic(image_size, config.validation_fraction, config.train_samples)
    from trainer.data.image_datasets import load_images

    return load_images(config, image_size)

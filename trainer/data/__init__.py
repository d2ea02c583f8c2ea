"""Image data sets by name, split once and for all, in an order that no strategy and no world size can change."""

from __future__ import annotations

from stratlab_spec.settings.config import Config
from trainer.data.images import ImageData


def open_data(config: Config, image_size: int) -> ImageData:
    """The data set of a run, without torch. `image_size` is what the batches are resized to, later and elsewhere.

    Raises:
        ConfigError: a column that the data set does not have.
        DataMissing: no such data set, or images that cannot be decoded.
    """
    if not config.dataset_path and config.dataset == "digits":
        from trainer.data.images import load_digits

        return load_digits(image_size, config.validation_fraction, config.train_samples)
    if not config.dataset_path and config.dataset == "synthetic":
        from trainer.data.images import load_synthetic

        return load_synthetic(image_size, config.validation_fraction, config.train_samples)
    from trainer.data.image_datasets import load_images

    return load_images(config, image_size)

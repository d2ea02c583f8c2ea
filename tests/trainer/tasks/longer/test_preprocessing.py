"""Published weights see the pixels that they were trained with: those of the library's own processor, from the same
stored images."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
import transformers

from stratlab_spec.models.model_specs import (
    FILE,
    PLAIN,
    default_image_size,
    write_preprocessing,
)
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import refuses
from tests.trainer.models.conftest import write_model
from trainer.data.batches import SampleOrder, Share
from trainer.data.images import ImageData, Images
from trainer.engine import as_sums
from trainer.models.model_with_loss import ClassLoss
from trainer.models.torchvision_networks import NETWORKS
from trainer.tasks import image_task as tasks
from trainer.tasks.image_task import ImageTask
from trainer.tasks.normalization import find_preprocessing

MOST_OFF, MEAN_OFF = 3 / 255, 0.5 / 255
"""Of a pixel from 0 to 1: the libraries round to whole levels after each direction, the lab does not round."""


def pictures(count: int = 2, channels: int = 3, edge: int = 256) -> np.ndarray:
    random = np.random.default_rng(5)
    coarse = torch.from_numpy(random.random((count, channels, 9, 9), np.float32))
    smooth = torch.nn.functional.interpolate(coarse, (edge, edge), mode="bicubic").clamp(0, 1).numpy()
    return np.round(225 * smooth + 30 * random.random(smooth.shape)).astype(np.uint8)


@pytest.fixture
def stored(monkeypatch) -> np.ndarray:
    """The data of every task: two images of 256 x 256, for each split the same."""
    return use(monkeypatch, pictures())


def use(monkeypatch, pixels: np.ndarray) -> np.ndarray:
    def open_data(config: Config, image_size: int) -> ImageData:
        labels = np.arange(len(pixels)) % 5
        split = Images(lambda i: pixels[i], labels, pixels.shape[1:], image_size=image_size, classes=5)
        return ImageData(split, split, split, list("abcde"), "sha")

    monkeypatch.setattr(tasks, "open_data", open_data)
    return pixels


def batches_of(config: Config) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """(images of a training step, of an evaluation, numbers of the samples of that step)."""
    task = ImageTask(config, Share(0, 1), "cpu")
    task.start(0)
    judged: list[torch.Tensor] = []

    class Engine:
        module = torch.nn.Identity()

        def evaluate(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            judged.append(images)
            return as_sums(*ClassLoss().eval()(torch.zeros(len(images), 5), labels))

    task.evaluate(Engine(), "validation")  # type: ignore[arg-type]
    order = SampleOrder(config.seed, task.train_samples).indices(1, config.global_batch_size)
    return task.next_batch(1).micro[0][0], judged[0], order


def assert_same_pixels(found: torch.Tensor, wanted: Any, std: Any) -> None:
    wanted = torch.as_tensor(np.asarray(wanted))
    assert found.shape == wanted.shape
    off = (found - wanted).abs() * torch.as_tensor(np.asarray(std), dtype=torch.float32).view(-1, 1, 1)
    assert float(off.max()) < MOST_OFF and float(off.mean()) < MEAN_OFF, (off.max() * 255, off.mean() * 255)


def settings(**values: Any) -> Config:
    sizes = {"global_batch_size": 2, "micro_batch_size": 2}
    return Config(**{"run": "r", "init": "pretrained"} | sizes | values)


@pytest.mark.parametrize("name", ["resnet"])
def test_torchvision_s_weights_get_what_torchvision_s_transforms_make(stored, name):
    theirs = torchvision.models.get_model_weights(NETWORKS[name].function).DEFAULT.transforms()
    trained, judged, order = batches_of(settings(model=name))
    for found, pixels in ((trained, stored[order]), (judged, stored)):
        assert_same_pixels(found, theirs(torch.from_numpy(pixels)), theirs.std)
        assert found.shape[-1] == theirs.crop_size[0] == 224
    facts = ImageTask(settings(model=name), Share(0, 1), "cpu").facts["preprocessing"]
    assert facts["mean"] == (0.485, 0.456, 0.406) and facts["image_size"] == 224
    assert "torchvision" in facts["source"]


PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit with ImageNet's mean": (
        "ViTImageProcessor",
        {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "resample": 3},
    ),
    "deit cuts": (
        "DeiTImageProcessor",
        {"size": {"height": 256, "width": 256}, "crop_size": {"height": 224, "width": 224}},
    ),
    "convnext of 224": ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}, "crop_pct": 0.875}),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "model", "convnext")
    return tmp_path / "model"


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_hub_model_gets_what_its_own_processor_makes(stored, folder, name):
    kind, values = PROCESSORS[name]
    getattr(transformers, kind)(**values).save_pretrained(folder)
    theirs = transformers.AutoImageProcessor.from_pretrained(folder)
    trained, judged, order = batches_of(settings(model_path=str(folder)))
    how = find_preprocessing(settings(model_path=str(folder)))
    for found, pixels in ((trained, stored[order]), (judged, stored)):
        wanted = theirs([p.transpose(1, 2, 0) for p in pixels], return_tensors="np")["pixel_values"]
        assert_same_pixels(found, wanted, how.std)
    assert default_image_size(settings(model_path=str(folder))) == trained.shape[-1]


def test_a_processor_that_does_something_else_is_refused_and_without_one_it_is_assumed(folder, caplog):
    with caplog.at_level(logging.WARNING, "trainer"):
        found = find_preprocessing(settings(model_path=str(folder)))
    assert (found.mean, found.std, found.resize) == (PLAIN.mean, PLAIN.std, 0)
    assert FILE in found.source and FILE in caplog.text
    transformers.MobileViTImageProcessor().save_pretrained(folder)
    with refuses(ConfigError, "SL-processor-differs"):
        find_preprocessing(settings(model_path=str(folder)))


@pytest.mark.parametrize("augment", ["none", "mixup"])
def test_a_grey_image_is_normalised_for_three_colours(monkeypatch, augment):
    use(monkeypatch, pictures(channels=1))
    trained, judged, _ = batches_of(settings(model="resnet", augment=augment))
    assert trained.shape == judged.shape == (2, 3, 224, 224)
    theirs = torchvision.models.ResNet50_Weights.DEFAULT.transforms()
    mean, std = (torch.tensor(x).view(-1, 1, 1) for x in (theirs.mean, theirs.std))
    for images in (trained, judged):
        levels = images * std + mean
        assert float((levels - levels[:, :1]).abs().max()) < 1e-6, "one grey, not a colour"


def test_from_scratch_it_is_minus_one_to_one_or_the_pixels_of_imagenet(stored):
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    for normalization, middle, width in (("auto", 0.5, 0.5), ("imagenet", mean, std)):
        config = settings(model="cnn", init="scratch", image_size=256, normalization=normalization)
        trained, judged, samples = batches_of(config)
        wanted = (torch.from_numpy(stored).float() / 255 - middle) / width
        torch.testing.assert_close(trained, wanted[samples], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(judged, wanted, rtol=1e-5, atol=1e-5)


def test_imagenet_s_pixels_where_weights_or_images_have_others(tmp_path, monkeypatch):
    published, asked = (
        Config(run="r", model="resnet_finetuned", normalization=each) for each in ("auto", "imagenet")
    )
    assert find_preprocessing(asked) == find_preprocessing(published)
    write_model(tmp_path, "vit")
    write_preprocessing(PLAIN, 16, tmp_path)
    with refuses(ConfigError, "SL-normalization-weights"):
        find_preprocessing(settings(model_path=str(tmp_path), normalization="imagenet"))
    use(monkeypatch, pictures(channels=1, edge=32))
    with refuses(ConfigError, "SL-normalization-channels"):
        ImageTask(Config(run="r", model="cnn", normalization="imagenet"), Share(0, 1), "cpu")

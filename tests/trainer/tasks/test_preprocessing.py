"""Published weights see the pixels that they were trained with: those of the library's own processor, from the same
stored images."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
import transformers

from tests.trainer.models.conftest import write_model
from trainer.data.batches import Share
from trainer.data.images import ImageData, Images
from trainer.data.order import SampleOrder
from trainer.engine import as_sums
from trainer.models.learner import ClassLoss
from trainer.models.torchvision_networks import NETWORKS
from trainer.settings.config import Config, ConfigError
from trainer.shapes.model_shapes import TORCHVISION, default_image_size
from trainer.shapes.preprocessing import FILE, PLAIN, Preprocessing, write_preprocessing
from trainer.tasks import image_task as tasks
from trainer.tasks.image_task import ImageTask
from trainer.tasks.normalization import find_preprocessing, measure_difference

MOST_OFF, MEAN_OFF = 3 / 255, 0.5 / 255
"""Of a pixel from 0 to 1: the libraries round to whole levels after each direction, the lab does not round."""


def pictures(count: int = 6, channels: int = 3, edge: int = 256) -> np.ndarray:
    """Smooth, with noise; every channel another one."""
    random = np.random.default_rng(5)
    coarse = torch.from_numpy(random.random((count, channels, 9, 9), np.float32))
    smooth = torch.nn.functional.interpolate(coarse, (edge, edge), mode="bicubic").clamp(0, 1).numpy()
    return np.round(225 * smooth + 30 * random.random(smooth.shape)).astype(np.uint8)


@pytest.fixture
def stored(monkeypatch) -> np.ndarray:
    """The data of every task: six images of 256 x 256, for each split the same."""
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
    size = config.global_batch_size
    order = SampleOrder(config.seed, task.train_samples).indices(1, size)
    return task.next_batch(1).micro[0][0], judged[0], order


def assert_same_pixels(found: torch.Tensor, wanted: Any, std: Any) -> None:
    wanted = torch.as_tensor(np.asarray(wanted))
    assert found.shape == wanted.shape
    off = (found - wanted).abs() * torch.as_tensor(np.asarray(std), dtype=torch.float32).view(-1, 1, 1)
    assert float(off.max()) < MOST_OFF and float(off.mean()) < MEAN_OFF, (off.max() * 255, off.mean() * 255)


def settings(**values: Any) -> Config:
    return Config(
        **{"run": "r", "init": "pretrained", "global_batch_size": 6, "micro_batch_size": 6} | values
    )


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision_s_weights_get_what_torchvision_s_transforms_make(stored, name):
    theirs = torchvision.models.get_model_weights(NETWORKS[name].function).DEFAULT.transforms()
    trained, judged, order = batches_of(settings(model=name))
    for found, pixels in ((trained, stored[order]), (judged, stored)):
        assert_same_pixels(found, theirs(torch.from_numpy(pixels)), theirs.std)
        assert found.shape[-1] == theirs.crop_size[0] == 224


PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViTImageProcessor", {}),
    "vit with ImageNet's mean": (
        "ViTImageProcessor",
        {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "resample": 3},
    ),
    "vit of 96": ("ViTImageProcessor", {"size": {"height": 96, "width": 96}}),
    "vit without normalising": ("ViTImageProcessor", {"do_normalize": False}),
    "deit cuts": (
        "DeiTImageProcessor",
        {"size": {"height": 256, "width": 256}, "crop_size": {"height": 224, "width": 224}},
    ),
    "bit": ("BitImageProcessor", {}),
    "convnext of 224": ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}, "crop_pct": 0.875}),
    "convnext of 384": ("ConvNextImageProcessor", {}),
    "efficientnet": ("EfficientNetImageProcessor", {"include_top": True, "resample": 2}),
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


def test_a_processor_that_does_something_else_is_refused(folder):
    """MobileViT turns the colours around: its weights would see blue for red."""
    transformers.MobileViTImageProcessor().save_pretrained(folder)
    with pytest.raises(
        ConfigError, match="its MobileViTImageProcessor makes other pixels than resizing, cutting"
    ):
        find_preprocessing(settings(model_path=str(folder)))


def test_without_a_processor_it_is_said_what_is_assumed(folder, caplog):
    with caplog.at_level(logging.WARNING, "trainer"):
        found = find_preprocessing(settings(model_path=str(folder)))
    assert (found.mean, found.std, found.resize) == (PLAIN.mean, PLAIN.std, 0)
    assert found.source == f"assumed: model has no {FILE}" and f"no {FILE} there" in caplog.text


@pytest.mark.parametrize("name", ["vit_tiny", "cnn", "resnet"])
def test_a_network_of_ours_that_starts_from_scratch_sees_minus_one_to_one(stored, name):
    config = settings(model=name, init="scratch", image_size=256)
    assert find_preprocessing(config) is PLAIN
    trained, _, order = batches_of(config)
    assert torch.equal(trained, torch.from_numpy(stored[order]).float() / 127.5 - 1)


def test_another_image_size_cuts_off_as_much(stored, folder):
    """A resnet of 112 pixels sees the same share of the image as one of 224."""
    large, small = (batches_of(settings(model="resnet", image_size=size))[1] for size in (224, 112))
    halved = torch.nn.functional.interpolate(large, (112, 112), mode="bilinear", antialias=True)
    assert float((small - halved).abs().mean()) < 0.05


@pytest.mark.parametrize("augment", ["none", "crop_flip", "mixup"])
def test_a_grey_image_is_normalised_for_three_colours(monkeypatch, augment):
    use(monkeypatch, pictures(channels=1))
    trained, judged, _ = batches_of(settings(model="resnet", augment=augment))
    assert trained.shape == judged.shape == (6, 3, 224, 224)
    theirs = torchvision.models.ResNet50_Weights.DEFAULT.transforms()
    mean, std = (torch.tensor(x).view(-1, 1, 1) for x in (theirs.mean, theirs.std))
    for images in (trained, judged):
        levels = images * std + mean
        assert float((levels - levels[:, :1]).abs().max()) < 1e-6, "one grey, not a colour"


@pytest.mark.parametrize(
    "how",
    [
        PLAIN,
        Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224, 256, "bicubic", "somebody's"),
        Preprocessing((0.1,), (0.7,), 224, 0, "bilinear", "somebody's"),
    ],
)
def test_what_a_run_exports_is_read_with_the_same_pixels(folder, how):
    """By transformers, and by the lab itself."""
    write_preprocessing(how, 112, folder)
    again = find_preprocessing(settings(model_path=str(folder)))
    assert again.image_size == 112 and again.resized_edge(112) == how.resized_edge(112)
    assert again.mean == pytest.approx(how.mean * (3 // len(how.mean)))
    assert again.std == pytest.approx(how.std * (3 // len(how.std)))
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    assert measure_difference(processor, again) <= 3


def test_the_run_says_what_its_images_went_through(stored):
    facts = ImageTask(settings(model="efficientnet"), Share(0, 1), "cpu").facts["preprocessing"]
    facts = json.loads(json.dumps(facts))
    assert facts["mean"] == [0.485, 0.456, 0.406] and facts["std"] == [0.229, 0.224, 0.225]
    assert (facts["image_size"], facts["resize"], facts["interpolation"]) == (224, 256, "bicubic")
    assert facts["source"] == "torchvision, EfficientNet_B0_Weights.IMAGENET1K_V1"


def test_from_scratch_with_the_pixels_of_imagenet(stored):
    """As torchvision's own transforms would give them, in training and in evaluation alike."""
    config = Config(
        run="r",
        model="cnn",
        image_size=256,
        normalization="imagenet",
        global_batch_size=4,
        micro_batch_size=4,
    )
    found = find_preprocessing(config)
    assert (found.source, found.resize, found.image_size) == ("asked for: ImageNet's", 0, 0)
    training, evaluation, samples = batches_of(config)
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    wanted = (torch.from_numpy(stored[samples]).float() / 255 - mean) / std
    torch.testing.assert_close(training, wanted, rtol=1e-5, atol=1e-5)
    whole = (torch.from_numpy(stored).float() / 255 - mean) / std
    torch.testing.assert_close(evaluation, whole[: len(evaluation)], rtol=1e-5, atol=1e-5)


def test_imagenet_s_pixels_where_the_weights_have_them_and_where_they_have_others(tmp_path):
    published = Config(run="r", model="resnet_finetuned")
    asked = Config(run="r", model="resnet_finetuned", normalization="imagenet")
    assert find_preprocessing(asked) == find_preprocessing(published)
    write_model(tmp_path, "vit")
    write_preprocessing(PLAIN, 16, tmp_path)
    settings = {"model_path": str(tmp_path), "init": "pretrained", "normalization": "imagenet"}
    with pytest.raises(ConfigError, match="were trained with mean 0.5.*; leave it out"):
        find_preprocessing(Config(run="r", **settings))


def test_grey_images_have_none_of_imagenet_s_channels(monkeypatch):
    use(monkeypatch, pictures(channels=1, edge=32))
    with pytest.raises(ConfigError, match="has 3 channels, the images of digits have 1; leave it out"):
        ImageTask(Config(run="r", model="cnn", normalization="imagenet"), Share(0, 1), "cpu")

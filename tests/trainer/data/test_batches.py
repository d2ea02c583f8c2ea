"""Every strategy sees the same samples and the same pixels: whatever the world size, the micro-batch and the attempt.

No two things of a run, and no two runs, draw from the same stream of random numbers.
"""

from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from stratlab_spec.models.model_specs import PLAIN, Preprocessing
from stratlab_spec.settings.config import Config
from trainer.data import augmentation as randaugment
from trainer.data.augmentation import COLUMNS, _crop_flip, augment_images, draw_looks, resize
from trainer.data.batches import Batch, SampleOrder, Share, build_batch, evaluation_batches
from trainer.data.images import Images
from trainer.data.placement import ImageSource, build_source, resolve_residence
from trainer.data.text.token_rows import IGNORED
from trainer.tasks.image_task import ImageTask

IN_TWOS = Config(run="try", global_batch_size=6, micro_batch_size=2)


def numbered(count: int) -> Images:
    return Images(lambda i: np.full((1, 2, 2), i % 256, np.uint8), np.arange(count), (1, 2, 2))


def test_every_sample_comes_once_per_epoch_across_batches():
    order = SampleOrder(0, 10)
    seen = np.concatenate([order.batch(step, 4) for step in range(1, 6)])
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert list(seen[:10]) != list(seen[10:])


def test_evaluation_counts_every_sample_once_and_gives_all_ranks_equally_many_batches():
    images, seen, rounds = numbered(11), [], []
    for rank in range(3):
        batches = list(evaluation_batches(images, IN_TWOS, Share(rank, 3), "cpu"))
        rounds.append(len(batches))
        seen += [int(y) for _, ys in batches for y in ys if y != IGNORED]
    assert sorted(seen) == list(range(11)) and rounds == [2, 2, 2]


def test_every_seed_epoch_and_step_has_a_stream_of_its_own(monkeypatch):
    """Seed 1 in epoch 0 is not seed 0 in epoch 1; the looks of step 2 are not the order of epoch 2."""
    begun: Counter[tuple[int, ...]] = Counter()
    build = np.random.default_rng

    def watch(seed):
        begun[tuple(np.random.SeedSequence(seed).generate_state(4).tolist())] += 1
        return build(seed)

    monkeypatch.setattr(np.random, "default_rng", watch)
    for seed in range(5):
        order = SampleOrder(seed, 10)
        for epoch in range(5):
            order.indices(epoch + 1, 10)
        for step in range(1, 6):
            draw_looks(
                Config(run="try", augment="all", seed=seed, global_batch_size=4, micro_batch_size=4), step
            )
    assert len(begun) == 5 * (5 + 5) and set(begun.values()) == {1}


def test_two_seeds_have_no_epoch_in_common():
    epochs = [tuple(SampleOrder(seed, 30).indices(epoch, 30)) for seed in range(4) for epoch in range(1, 5)]
    assert len(set(epochs)) == 16


@pytest.mark.parametrize("augment", ["crop_flip", "mixup"])
def test_the_run_s_seed_reaches_the_augmentation(augment):
    config = Config(
        run="try", seed=3, augment=augment, image_size=8, global_batch_size=16, micro_batch_size=16
    )
    task = ImageTask(config, Share(0, 1), "cpu")
    task.start(0)
    found = task.next_batch(2).micro[0][0]

    def with_looks_of(seed: int) -> torch.Tensor:
        order = SampleOrder(3, task.train_samples)
        other = config.model_copy(update={"seed": seed})
        return build_batch(task._data.train, order, 2, other, Share(0, 1), "cpu").micro[0][0]

    assert torch.equal(found, with_looks_of(3))
    assert not any(torch.equal(found, with_looks_of(seed)) for seed in (0, 1, 2))


GLOBAL, SAMPLES = 24, 50


def settings(augment: str, micro: int = 24, seed: int = 3) -> Config:
    sizes = {"global_batch_size": GLOBAL, "micro_batch_size": micro}
    return Config(run="try", augment=augment, seed=seed, **sizes)


def pictures(edge: int = 8, channels: int = 3, image_size: int = 12, slow: bool = False) -> Images:
    pixels = np.random.default_rng(0).integers(0, 256, (SAMPLES, channels, edge, edge), dtype=np.uint8)
    labels = np.arange(SAMPLES) % 5
    return Images(lambda i: pixels[i], labels, (channels, edge, edge), image_size=image_size, slow=slow)


def batch(
    source: Images | ImageSource, augment: str, step: int = 1, rank: int = 0, ranks: int = 1, micro: int = 24
) -> Batch:
    order = SampleOrder(3, SAMPLES)
    return build_batch(source, order, step, settings(augment, micro), Share(rank, ranks), "cpu")


def joined(source: Images | ImageSource, augment: str, step: int = 1, ranks: int = 1, micro: int = 24):
    parts = [part for rank in range(ranks) for part in batch(source, augment, step, rank, ranks, micro).micro]
    assert all(len(images) == len(labels) == micro for images, labels in parts)
    return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])


@pytest.mark.parametrize(("augment", "edge"), [("none", 8), ("all", 8), ("all", 80)])
def test_the_same_pixels_for_every_world_size_and_micro_batch(augment, edge):
    source = pictures(edge, image_size=edge * 7 // 8 if edge > 64 else 12)
    images, labels = joined(source, augment, 3)  # step 3 crosses into the second epoch
    for ranks, micro in ((1, 8), (2, 12), (4, 1)) if edge < 64 else ((4, 6),):
        again = joined(source, augment, 3, ranks, micro)
        assert torch.equal(images, again[0]) and torch.equal(labels, again[1]), (ranks, micro)


def test_streaming_gives_the_same_batches_also_after_a_jump_and_whatever_came_before():
    source = build_source(pictures(slow=True), "stream", "cpu")
    for step in (1, 2, 7):
        (mine,), (whole,) = batch(source, "all", step).micro, batch(pictures(), "all", step).micro
        assert torch.equal(mine[0], whole[0]) and torch.equal(mine[1], whole[1])


def numbers(**given: float) -> np.ndarray:
    """One row in which nothing happens, but for what is given."""
    row = np.full((1, COLUMNS), 0.5)
    row[:, 5:] = [0.0, 0.5] * randaugment.ROUNDS
    for name, value in given.items():
        row[0, {"x": 0, "y": 1, "area": 2, "ratio": 3, "flip": 4, "first": 5, "second": 7}[name]] = value
    return row


def coloured(edge: int = 16) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, 256, (1, 3, edge, edge), dtype=np.uint8))


def test_looks_of_a_small_image():
    stored, config = coloured(), settings("crop_flip")
    assert torch.allclose(augment_images(stored, numbers(), config, 16), stored.float(), atol=1e-3)
    assert torch.allclose(augment_images(stored, numbers(), config, 48), resize(stored, 48), atol=1e-2)
    flipped = augment_images(stored, numbers(flip=0.1), config, 16)
    assert torch.allclose(flipped, stored.float().flip(3), atol=1e-3)
    moved = augment_images(stored, numbers(x=0.999), config, 16)  # the largest: an eighth of the edge
    assert torch.allclose(moved[..., :14], stored[..., 2:].float(), atol=1e-3)
    assert moved[..., 14:].abs().max() == 0


@pytest.mark.parametrize(
    ("area", "ratio", "flip", "width", "height"),
    [
        (0.5, 4 / 3, 0.9, (2 / 3) ** 0.5, (3 / 8) ** 0.5),
        (0.5, 3 / 4, 0.1, (3 / 8) ** 0.5, (2 / 3) ** 0.5),
        (1, 4 / 3, 0.9, 1, 0.75**0.5),  # no wider than the image
    ],
)
def test_where_a_crop_of_a_large_image_lies(area, ratio, flip, width, height):
    """By hand: halves of a part with this area and ratio of its edges, in a corner; both axes run from -1 to 1."""
    drawn = (np.log(ratio) - np.log(3 / 4)) / np.log(16 / 9)
    given = numbers(x=0.0, y=1.0, area=(area - 0.08) / 0.92, ratio=drawn, flip=flip)
    wanted = [[(-1 if flip < 0.5 else 1) * width, 0, width - 1], [0, height, 1 - height], [0, 0, 1]]
    np.testing.assert_allclose(_crop_flip(given, 128), [wanted], atol=1e-12)


def test_every_colour_operation_of_randaugment_does_what_pil_does():
    stored = coloured(32)
    image, more = Image.fromarray(stored[0].permute(1, 2, 0).numpy()), 1 + randaugment.BLEND
    expected = {
        "identity": image, "brightness": ImageEnhance.Brightness(image).enhance(more),
        "colour": ImageEnhance.Color(image).enhance(more),
        "contrast": ImageEnhance.Contrast(image).enhance(more),
        "sharpness": ImageEnhance.Sharpness(image).enhance(more),
        "posterize": ImageOps.posterize(image, 7),
        "solarize": ImageOps.solarize(image, int(randaugment.SOLARIZE_FROM) + 1),
        "autocontrast": ImageOps.autocontrast(image), "equalize": ImageOps.equalize(image),
    }  # fmt: skip
    assert {*expected} == {*randaugment.OPERATIONS} - {*randaugment.GEOMETRIC}
    for place, name in enumerate(randaugment.OPERATIONS):
        which = (place + 0.5) / len(randaugment.OPERATIONS)
        found = augment_images(stored, numbers(first=which), settings("randaugment"), 32)[0]
        assert found.min() >= 0 and found.max() <= 255
        if name in expected:
            other = torch.from_numpy(np.asarray(expected[name]).copy()).permute(2, 0, 1).float()
            assert (found - other).abs().max() <= 2, name
        else:
            assert (found - stored[0].float()).abs().mean() > 5, name


def test_mixup_gives_shares_of_classes_that_fit_the_pixels():
    source = pictures()
    plain, hard = joined(source, "crop_flip")
    mixed, shares = joined(source, "mixup")
    assert shares.shape == (GLOBAL, 5) and torch.allclose(shares.sum(1), torch.ones(GLOBAL))
    looks = draw_looks(settings("mixup"), 1)
    own = torch.from_numpy(looks.own_share).view(-1, 1, 1, 1)
    assert torch.allclose(mixed, own * plain + (1 - own) * plain[looks.partners], atol=1e-5)
    for i, partner in enumerate(looks.partners):
        expected = torch.zeros(5)
        expected[hard[i]] += own[i].item()
        expected[hard[partner]] += 1 - own[i].item()
        assert torch.allclose(shares[i], expected, atol=1e-6)


@pytest.mark.parametrize("how", [PLAIN, Preprocessing((0.4, 0.5, 0.6), (0.2, 0.2, 0.3), 12, 14, "bicubic")])
def test_what_is_not_augmented_looks_the_same_in_training_and_in_evaluation(how):
    config, order = settings("none"), SampleOrder(3, SAMPLES)
    whole = torch.cat([x for x, _ in evaluation_batches(pictures(), config, Share(0, 1), "cpu", how)])
    other = evaluation_batches(pictures(slow=True), settings("all"), Share(0, 1), "cpu", how)
    assert torch.equal(whole, torch.cat([x for x, _ in other]))
    (trained, _), *others = build_batch(pictures(), order, 2, config, Share(0, 1), "cpu", how).micro
    assert torch.equal(trained, whole[order.indices(2, GLOBAL)]) and not others


@pytest.mark.parametrize(("share", "expected"), [(0.049, "device"), (0.051, "stream")])
def test_of_a_gpu_s_memory_auto_takes_a_twentieth(monkeypatch, share, expected):
    split = pictures()
    total = int(split.bytes_stored / share)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (total // 2, total))
    assert resolve_residence("auto", split, "cuda") == expected

"""The rules of what makes a host wait, one by one; and the way of a batch to a device, over which nothing waits."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stratlab_spec.models.model_specs import PLAIN, Preprocessing
from tests.trainer.counting.real_steps import make_config
from tests.trainer.data.text.token_caches import build, text_config
from trainer.data import open_data
from trainer.data.batches import SampleOrder, Share, build_batch, build_text_batch
from trainer.data.placement import build_source
from trainer.memory_estimation import storages as waits
from trainer.memory_estimation.storages import WaitWatch

FLAGS = torch.tensor([True, False, True])
NUMBERS = torch.arange(3)
COLOURS = Preprocessing(
    mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3), image_size=0, resize=0, interpolation="bilinear", source="x"
)


@pytest.mark.parametrize(
    ("asks", "why"),
    [
        (lambda: NUMBERS.sum().item(), waits.READS),
        (lambda: NUMBERS.tolist(), waits.READS),
        (lambda: torch.equal(NUMBERS, NUMBERS), waits.READS),
        (lambda: FLAGS.nonzero(), waits.SIZES),
        (lambda: NUMBERS.repeat_interleave(NUMBERS), waits.SIZES),
        (lambda: NUMBERS[FLAGS], waits.MASKS),
        (lambda: NUMBERS.bincount(), waits.COUNTS),
        (lambda: torch.tensor(1.0), waits.MADE),
        (lambda: NUMBERS[[0, 2]], waits.MADE),
        (lambda: NUMBERS.numpy(), waits.TO_HOST),
        (lambda: torch.cuda.synchronize(), waits.ALL),
    ],
)
def test_what_waits_is_counted_once(asks, why, monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with WaitWatch() as watch:
        asks()
    assert [(wait.why, number) for wait, number in watch.found.items()] == [(why, 1)]
    (wait,) = watch.found
    assert wait.asked_by.startswith("tests/trainer/counting/test_waits.py:") and wait.line == ""


def test_what_does_not_wait_is_not_counted():
    some = NUMBERS.clone()
    with WaitWatch() as watch:
        some[FLAGS] = 0
        assert len(NUMBERS.repeat_interleave(NUMBERS, output_size=3)) == len(NUMBERS[NUMBERS]) == 3
        for work in (NUMBERS.masked_fill(FLAGS, 0), torch.where(FLAGS, NUMBERS, 0), torch.zeros(3) + 1.0):
            work.to(torch.float32).sort()
    assert not watch.found


def test_between_host_and_device_only_pinned_memory_is_fetched_without_waiting():
    def found(work):
        with FakeTensorMode(allow_non_fake_inputs=True), WaitWatch(one_device=False) as watch:
            work(torch.from_numpy(np.arange(3)))
        return [wait.why for wait in watch.found]

    assert found(lambda host: host.pin_memory().to("cuda", non_blocking=True)) == []
    assert found(lambda host: host.pin_memory().to("cuda")) == [waits.TO_DEVICE]
    assert found(lambda host: host.to("cuda", non_blocking=True)) == [waits.TO_DEVICE]
    assert found(lambda host: torch.empty(3, device="cuda").copy_(host)) == [waits.TO_DEVICE]
    assert found(lambda _: torch.empty(3, device="cuda").cpu()) == [waits.TO_HOST]
    assert found(lambda _: torch.empty(3, device="cuda").double()) == []


@pytest.mark.parametrize(
    ("augment", "residence", "how"), [("randaugment", "device", COLOURS), ("all", "stream", PLAIN)]
)
def test_images_reach_a_device_without_a_wait(augment, residence, how):
    sizes = f"global_batch_size=16 micro_batch_size=4 augment={augment}"
    config = make_config(f"model=vit_tiny dataset=digits strategy=single {sizes}")
    data = open_data(config, 32)
    with FakeTensorMode(allow_non_fake_inputs=True), WaitWatch(one_device=False) as watch:
        source = build_source(data.train, residence, "cuda")
        watch.found.clear()  # to put them there is no step's work
        order = SampleOrder(0, len(data.train))
        for step in (1, 2):
            batch = build_batch(source, order, step, config, Share(0, 2), "cuda", how)
    assert batch.micro[0][0].device.type == "cuda" and len(batch.micro) == 2
    assert dict(watch.found) == {}


def test_packed_text_reaches_a_device_without_a_wait(tmp_path):
    data = build(text_config(tmp_path, packing=True))
    with FakeTensorMode(allow_non_fake_inputs=True), WaitWatch(one_device=False) as watch:
        order = SampleOrder(0, len(data.train))
        batch = build_text_batch(data.train, order, 1, 8, 2, share=Share(0, 2), device="cuda")
    assert batch.micro[0][0].device.type == "cuda" and len(batch.micro) == 2
    assert dict(watch.found) == {}

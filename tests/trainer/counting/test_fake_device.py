from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from trainer.counting.fake_device import asks_for_device, is_on_meta
from trainer.counting.storages import StorageWatch


def test_a_device_is_told_without_an_operator():
    with FakeTensorMode(), StorageWatch(1) as watch:
        fake = torch.empty(2, device="cpu")
        made = watch.operators
        assert fake.device == torch.device("cpu") and watch.operators == made == 1
        assert not is_on_meta(fake) and is_on_meta(torch.empty(2, device="meta"))
        assert asks_for_device(torch.ops.prim.device.default, (fake,))
        assert not asks_for_device(torch.ops.aten.add.Tensor, (fake,))
    assert is_on_meta(torch.empty(2, device="meta")) and not is_on_meta(torch.empty(2))
    assert not asks_for_device(torch.ops.prim.device.default, (torch.empty(2),))

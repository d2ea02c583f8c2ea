"""A network with batch norm and grouped convolutions, whole: what small ones show too, in seconds instead."""

from __future__ import annotations

import peft
import torch

from tests.trainer.models.longer.test_activation_checkpointing import compare
from tests.trainer.models.longer.test_lora import build, settings, trained
from trainer.models.lora import save_adapter
from trainer.models.merged import merge_adapters


def test_its_adapters_start_as_the_base_load_outside_and_merge(tmp_path):
    """The statistics of batch norm included, which have moved in training."""
    base, model = (build(model="mobilenet", lora_rank=rank) for rank in (0, 4))
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(model.eval()(images), base.eval()(images), rtol=1e-5, atol=1e-5)
    model.train()(torch.rand(4, 3, 32, 32))
    wanted = trained(model, std=0.02)(images)
    save_adapter(model.state_dict(), model, settings("mobilenet"), tmp_path / "adapter")
    plain = build(model="mobilenet", lora_rank=0)
    plain.network().load_state_dict(merge_adapters(model, model.state_dict(), settings("mobilenet")))
    torch.testing.assert_close(plain.eval()(images), wanted, rtol=1e-4, atol=1e-5)
    outside = peft.PeftModel.from_pretrained(base.network(), tmp_path / "adapter").eval()
    torch.testing.assert_close(outside(images), wanted, rtol=1e-5, atol=1e-4)


def test_its_blocks_are_recomputed():
    plain, recomputed = (
        build(model="mobilenet", lora_rank=0, activation_checkpointing=kind) for kind in ("none", "blocks")
    )
    compare(plain, recomputed, torch.rand(4, 3, 32, 32))

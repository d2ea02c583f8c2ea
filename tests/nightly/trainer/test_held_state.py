"""State that is foreseen for 2, 4 and 8 ranks against the tensors that so many real processes hold: to the byte.

Foreseen is a count on the fake process group, by a CPU's rules; held is what each rank's engine has in the update of
its second step over gloo, storage by storage (trainer/measuring/held_tensors.py). That walk leaves out what the count
has besides: AdamW's step counters, four bytes for each parameter or flat group; the table of rotary positions. In
stage 3 it sees the parameters too that are gathered at that moment, which a count keeps apart. An FSDP shard that is
padded with nothing of its own holds the padding under another cause.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.ranks import run_ranks

VIT = "model=vit_tiny dataset=digits image_size=32 micro_batch_size=2"
QWEN = "model=qwen_tiny dataset=arithmetic seq_len=32 micro_batch_size=2"
RUNS = [
    (VIT, "ddp", 2), (VIT, "fsdp", 4), (VIT, "hsdp dp_replicate=2 dp_shard=4", 8), (VIT, "zero1", 2),
    (VIT, "zero2", 4), (VIT, "zero3", 8), (VIT, "zeropp", 4), (QWEN, "nd layout=given tp=2 pp=2 dp_shard=2", 8),
]  # fmt: skip
VIT_BYTES = 559_912
"""Its parameters in fp32: gathered whole, in the update, where they are small."""
STEP_BYTES, ROTARY_BYTES = 4, 64
TENSORS = {"zero": 1, "nd": 50, "": 72}
"""Parameters, or flat groups of them, of the largest stage."""


@pytest.mark.parametrize(("model", "strategy", "ranks"), RUNS)
def test_real_processes_hold_what_is_foreseen(model: str, strategy: str, ranks: int, tmp_path: Path) -> None:
    text = f"{model} precision=bf16 global_batch_size={4 * ranks} strategy={strategy}"

    def hold() -> None:
        import torch.distributed as dist

        from tests.trainer.counting.real_steps import make_config, run_steps

        os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]
        dist.init_process_group("gloo")
        engine = run_steps(make_config(text))
        (tmp_path / f"held-{dist.get_rank()}.json").write_text(json.dumps(engine.observed.bytes_held))
        dist.destroy_process_group()

    def foresee() -> None:
        from tests.trainer.counting.real_steps import make_config
        from trainer.memory_estimation.steps import count, find_pictures

        config = make_config(text)
        for rank in (0, ranks - 1):
            counted = count(config, ranks, rank, find_pictures(config), cuda=False, block_bytes=1)
            causes = counted.windows["optimizer"].by_cause()
            (tmp_path / f"foreseen-{rank}.json").write_text(json.dumps(causes))

    run_ranks(hold, ranks)
    run_ranks(foresee, 1)
    for rank in (0, ranks - 1):
        names = (f"{kind}-{rank}.json" for kind in ("held", "foreseen"))
        assert_equal(strategy.split()[0], *(json.loads((tmp_path / name).read_text()) for name in names))


def assert_equal(strategy: str, held: dict[str, int], foreseen: dict[str, int]) -> None:
    """Every part of a rank, but for what the file's first lines name."""
    zero, whole = strategy.startswith("zero"), strategy in ("zero3", "zeropp")
    parameters = foreseen["parameters"] + foreseen["master copies"]
    gradients = foreseen["gradients"] + (0 if whole else foreseen["gradient buckets"])
    parameters += VIT_BYTES if whole else 0
    parameters -= ROTARY_BYTES if strategy == "nd" else 0
    padding = held["parameters"] - parameters
    assert padding == 0 or (strategy in ("fsdp", "hsdp") and 0 < padding <= 1024), (held, foreseen)
    assert held["gradients"] == gradients, (held, foreseen)
    assert held.get("buckets", 0) == (foreseen["gradient buckets"] if whole else 0), (held, foreseen)
    counters = foreseen["optimizer state"] - held["optimizer"]
    tensors = TENSORS["zero" if zero else "nd" if strategy == "nd" else ""]
    assert counters % STEP_BYTES == 0 and 0 < counters <= STEP_BYTES * (tensors + 2), (held, foreseen)

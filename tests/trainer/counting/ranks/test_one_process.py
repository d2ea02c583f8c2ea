"""What a count replaces in libraries costs nothing and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

from tests.ranks import run_ranks
from tests.trainer.counting.ranks.real_steps import make_config

ASKED = "strategy=zero3 model=vit_tiny image_size=32 precision=bf16 micro_batch_size=2 global_batch_size=8"


def test_libraries_ask_the_machine_once_and_are_as_they_were_behind_it(tmp_path: Path):
    """Fake tensors ask for CUDA, DeepSpeed for the nodes of a CPU: each time a library or a program is started."""

    def run() -> None:
        import torch
        from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

        from trainer.counting.inputs import find_pictures
        from trainer.counting.steps import count

        asked = {"is_available": 0, "device_count": 0}
        available, nodes = torch.cuda.is_available, CPU_Accelerator.device_count

        def is_available() -> bool:
            asked["is_available"] += 1
            return available()

        def device_count(self: CPU_Accelerator) -> int:
            asked["device_count"] += 1
            return nodes(self)

        torch.cuda.is_available, CPU_Accelerator.device_count = is_available, device_count
        config = make_config(ASKED)
        found = count(config, 2, 0, find_pictures(config))
        assert found.peak.total > 0
        same = torch.cuda.is_available is is_available and CPU_Accelerator.device_count is device_count
        (tmp_path / "asked.json").write_text(json.dumps({**asked, "same": same}))

    run_ranks(run, 1)
    asked = json.loads((tmp_path / "asked.json").read_text())
    assert asked["same"]
    assert asked["device_count"] == 1 and asked["is_available"] <= 3

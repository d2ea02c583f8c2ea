"""torch's own error of a device without memory, raised in a step on a CPU: exit code, sentence, file."""

from __future__ import annotations

import json

import pytest

from tests.codes import find_codes
from tests.ranks import fork_ranks
from tests.trainer.ranks.test_hangs import settings


def be_worker(failing: int = 7) -> None:
    import torch

    from trainer import worker
    from trainer.engines.torch_engine import TorchEngine

    whole, steps = TorchEngine._update, [0]

    def update(self, lr):
        steps[0] += 1
        if steps[0] == failing:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...\nmore"
            )
        return whole(self, lr)

    TorchEngine._update = update
    raise SystemExit(worker.main())


@pytest.mark.parametrize(("failing", "ranks"), [(7, 2), (1, 1)])
def test_the_end_says_what_held_the_memory_and_what_to_try(tmp_path, failing, ranks):
    """In the first step too, of which nothing was measured before."""
    env = settings(tmp_path, "ddp", TRAINER_COLLECTIVE_TIMEOUT_S="120")
    ended = fork_ranks(lambda: be_worker(failing), ranks, env=env)
    assert [r.exit_code for r in ended] == [10] * ranks, ended[0].output[-2000:]
    said = ended[0].output
    assert "SL-device-memory" in find_codes(said) and f"step {failing} " in said and "node-7" in said
    assert "GPU 0 has" not in said, "torch's advice is in the file"
    assert "TRAINER_MICRO_BATCH_SIZE=4" in said and ("TRAINER_STRATEGY=zero1" in said) == (ranks > 1)
    found = json.loads((tmp_path / f"default/try/ranks/rank{ranks - 1}.out_of_memory.json").read_text())
    assert (found["step"], found["phase"], found["rank"]) == (failing, "optimizer", ranks - 1)
    parts = found["parts_gib"]
    assert {"parameters", "gradients", "rest", "data_set"} <= parts.keys() and ("optimizer" in parts) == (
        failing > 1
    )
    assert parts["gradients"] > 0 < parts["parameters"] and found["peak_gib"] >= found["held_gib"] > 0
    assert found["try"][0] == {"micro_batch_size": 4}

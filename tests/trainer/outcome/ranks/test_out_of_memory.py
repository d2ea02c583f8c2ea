"""torch's own error of a device without memory, raised in a step on a CPU: exit code, sentence, file."""

from __future__ import annotations

import json

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


def test_the_end_says_what_held_the_memory_and_what_to_try(tmp_path):
    ended = fork_ranks(be_worker, 2, env=settings(tmp_path, "ddp", TRAINER_COLLECTIVE_TIMEOUT_S="120"))
    assert [r.exit_code for r in ended] == [10, 10], ended[0].output[-2000:]
    said = ended[0].output
    assert (
        "rank 0 (node node-7) at step 7 (optimizer): CUDA out of memory. Tried to allocate 2.00 GiB" in said
    ), said
    assert "GiB were held: " in said
    assert (
        "TRAINER_MICRO_BATCH_SIZE=4, then TRAINER_ACTIVATION_CHECKPOINTING=blocks, "
        "then TRAINER_STRATEGY=zero1, then TRAINER_OFFLOAD=optimizer"
    ) in said
    found = json.loads((tmp_path / "default/try/ranks/rank1.out_of_memory.json").read_text())
    assert found["step"] == 7 and found["phase"] == "optimizer" and found["rank"] == 1
    assert {"parameters", "gradients", "optimizer", "rest", "data_set"} <= found["parts_gib"].keys()
    assert found["parts_gib"]["parameters"] > 0 and found["peak_gib"] >= found["held_gib"] > 0
    assert found["try"][0] == {"micro_batch_size": 4}


def be_worker_at_first() -> None:
    be_worker(failing=1)


def test_weights_and_gradients_are_told_in_the_first_step_too(tmp_path):
    ended = fork_ranks(
        be_worker_at_first, 2, env=settings(tmp_path, "ddp", TRAINER_COLLECTIVE_TIMEOUT_S="120")
    )
    assert [r.exit_code for r in ended] == [10, 10], ended[0].output[-2000:]
    assert "Tried to allocate 2.00 GiB. GPU 0" not in ended[0].output, "torch's advice is in the file"
    assert "activations and all else " in ended[0].output
    found = json.loads((tmp_path / "default/try/ranks/rank0.out_of_memory.json").read_text())
    assert found["step"] == 1
    assert found["parts_gib"]["gradients"] >= found["parts_gib"]["parameters"] > 0

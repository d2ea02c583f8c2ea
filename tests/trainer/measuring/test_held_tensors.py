"""What a rank holds, and what is kept beside an engine's state: told by shapes and numbers."""

import torch
from torch import nn

from trainer.measuring.held_tensors import Census, Observed, list_shards, state_tensors

WORDS, HIDDEN = 300, 40
WEIGHT_BYTES = WORDS * HIDDEN * 4


class Trained:
    """A head after some updates, observed as an engine observes itself."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.head = nn.Linear(HIDDEN, WORDS)
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=1e-3)
        self.observed = Observed()
        self.looks = Census(self.observed, "cpu", {WORDS})
        self.train(6)
        self._before = self.looks.take()

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad(set_to_none=True)
            self.head(torch.randn(16, HIDDEN)).square().sum().backward()
            if "parameters" not in self.observed.dtypes:
                self.observed.add("parameters", self.head.parameters())
                self.observed.add("gradients", [p.grad for p in self.head.parameters()])
            self.looks.note_gradients()
            self.optimizer.step()
            if "optimizer" not in self.observed.dtypes:
                self.observed.add("optimizer", state_tensors(self.optimizer))

    def found(self) -> dict[str, int]:
        """Without what was there before the test kept anything."""
        apart = {kind: size - self._before.get(kind, 0) for kind, size in self.looks.take().items()}
        return {kind: size for kind, size in apart.items() if size}


def test_copies_are_told_by_kind_also_some_steps_later():
    trained = Trained()
    assert trained.looks.take() == {}, "gradients are there, and are the engine's"
    assert trained.head.weight.grad is not None
    kept = [trained.head.weight.detach().to(torch.bfloat16), trained.head.weight.grad.clone()]
    kept.append(trained.optimizer.state[trained.head.weight]["exp_avg_sq"].clone())
    trained.train(5)
    wanted = {"parameters": WEIGHT_BYTES // 2, "gradients": WEIGHT_BYTES, "optimizer": WEIGHT_BYTES}
    assert trained.found() == wanted and len(kept) == 3


def test_long_pieces_are_told_by_their_views_and_logits_by_their_width():
    trained = Trained()
    flat = torch.cat([p.detach().flatten() for p in trained.head.parameters()])
    assert trained.found() == {}, "one long piece is nobody's shape"
    views = [flat[: WORDS * HIDDEN].view(WORDS, HIDDEN)]
    assert trained.found() == {"parameters": WEIGHT_BYTES}
    chunk = torch.zeros(64, WORDS)
    views += [chunk[:32], chunk[32:]]
    del chunk
    assert trained.found() == {"parameters": WEIGHT_BYTES, "logits": 64 * WORDS * 4} and len(views) == 3


def test_floating_point_storages_are_counted_once() -> None:
    weights = torch.zeros(10, 3)
    integers, empty = torch.zeros(100, dtype=torch.int64), torch.zeros(0, dtype=torch.bfloat16)
    observed = Observed()
    observed.add("parameters", [weights, weights.t(), weights[2:], integers, empty])
    observed.add("gradients", [torch.zeros(4, dtype=torch.float16), torch.zeros(2)])
    observed.add("optimizer", [])
    assert observed.bytes_held == {"parameters": 120, "gradients": 4 * 2 + 2 * 4, "optimizer": 0}
    assert observed.dtypes == {
        "parameters": ["float32"], "gradients": ["float16", "float32"], "optimizer": [],
    }  # fmt: skip
    assert observed.memory_gib()["parameters"] == 120 / 2**30


def test_of_an_optimizer_the_step_counter_is_left_out() -> None:
    weight = torch.nn.Parameter(torch.ones(5))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    assert [tuple(tensor.shape) for tensor in state_tensors(optimizer)] == [(5,), (5,)]


def test_of_deepspeed_s_stage_3_both_shards_count() -> None:
    plain, sharded = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    sharded.ds_tensor, sharded.ds_secondary_tensor = torch.ones(2), torch.ones(3)
    assert [len(shard) for shard in list_shards([plain, sharded])] == [2, 3]

"""What is kept beside an engine's state is told by shapes and numbers; what the engine has itself is nobody's copy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainer.measuring.census import Census
from trainer.measuring.observation import Observed, state_tensors

WORDS, HIDDEN = 300, 40
WEIGHT_BYTES = WORDS * HIDDEN * 4


class Trained:
    """A head after some updates, observed as an engine observes itself."""

    def __init__(self, steps: int = 6) -> None:
        torch.manual_seed(0)
        self.head = nn.Linear(HIDDEN, WORDS)
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=1e-3)
        self.observed = Observed()
        self.looks = Census(self.observed, "cpu", {WORDS})
        for _ in range(steps):
            self.train()

    def train(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.head(torch.randn(16, HIDDEN)).square().sum().backward()
        if "parameters" not in self.observed.dtypes:
            self.observed.add("parameters", self.head.parameters())
            self.observed.add("gradients", [p.grad for p in self.head.parameters()])
        self.looks.note_gradients()
        self.optimizer.step()
        if "optimizer" not in self.observed.dtypes:
            self.observed.add("optimizer", state_tensors(self.optimizer))

    def census(self, before: dict[str, int]) -> dict[str, int]:
        """Without what was there before this test kept anything."""
        found = self.now()
        return {
            kind: size - before.get(kind, 0) for kind, size in found.items() if size != before.get(kind, 0)
        }

    def now(self) -> dict[str, int]:
        return self.looks.take()


def test_an_engine_alone_keeps_nothing_beside_its_state():
    trained = Trained()
    assert trained.now() == {}, "gradients are there, and are the engine's"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copy_of_the_weights_is_one_also_some_steps_later(dtype: torch.dtype):
    trained = Trained()
    before = trained.now()
    kept = trained.head.weight.detach().to(dtype, copy=True)
    assert trained.census(before) == {"parameters": kept.numel() * kept.element_size()}
    for _ in range(5):
        trained.train()
    assert trained.census(before) == {"parameters": kept.numel() * kept.element_size()}


def test_gradients_and_moments_are_told_from_weights():
    trained = Trained()
    before = trained.now()
    assert trained.head.weight.grad is not None
    kept = [trained.head.weight.grad.clone()]
    assert trained.census(before) == {"gradients": WEIGHT_BYTES}
    kept.append(trained.optimizer.state[trained.head.weight]["exp_avg_sq"].clone())
    trained.train()
    assert trained.census(before) == {"gradients": WEIGHT_BYTES, "optimizer": WEIGHT_BYTES}
    assert len(kept) == 2


def test_copies_in_one_long_piece_are_told_where_there_are_views_of_it():
    trained = Trained()
    before = trained.now()
    flat = torch.cat([p.detach().flatten() for p in trained.head.parameters()])
    assert trained.census(before) == {}, "one long piece is nobody's shape"
    views = flat[: WORDS * HIDDEN].view(WORDS, HIDDEN)
    assert trained.census(before) == {"parameters": views.numel() * 4}


def test_logits_are_told_by_their_width_and_the_piece_that_they_lie_in():
    trained = Trained()
    before = trained.now()
    chunk = torch.zeros(64, WORDS)
    views = [chunk[:32], chunk[32:]]
    del chunk
    assert trained.census(before) == {"logits": 64 * WORDS * 4}
    assert len(views) == 2


def test_what_is_no_float_or_small_or_on_another_device_is_not_looked_at():
    trained = Trained()
    before = trained.now()
    others = [
        torch.zeros(WORDS, HIDDEN, dtype=torch.int64),
        torch.zeros(WORDS, HIDDEN, device="meta"),
        torch.zeros(1, 100, dtype=torch.float32),
        nn.Parameter(torch.zeros(0)),
    ]
    assert trained.census(before) == {} and len(others) == 4
    assert Census(trained.observed, "cuda", {WORDS}).take() == {}


def test_a_bucket_that_outlives_the_gradients_in_it_is_the_engine_s():
    """As DDP's, made anew behind the first step, while no parameter has a gradient."""
    trained = Trained()
    before = trained.now()
    parameters = list(trained.head.parameters())
    bucket = torch.zeros(sum(p.numel() for p in parameters))
    views = [
        part.view_as(p)
        for part, p in zip(bucket.split([p.numel() for p in parameters]), parameters, strict=True)
    ]
    for parameter, view in zip(parameters, views, strict=True):
        parameter.grad = view
    trained.looks.note_gradients()
    trained.optimizer.zero_grad(set_to_none=True)
    assert trained.census(before) == {}
    copies = [view.clone() for view in views]
    assert trained.census(before) == {"gradients": sum(copy.numel() * 4 for copy in copies)}

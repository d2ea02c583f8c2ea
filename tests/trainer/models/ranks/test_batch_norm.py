"""Batch norm over all ranks against torch's own over the whole batch in one process."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.ranks import run_ranks
from tests.trainer.models.longer.test_synchronised_batch_norm import CHANNELS, ROWS, images, layer
from trainer.models.batch_norm import SynchronisedBatchNorm, apply_synchronised_batch_norm


def test_statistics_of_the_ranks_become_their_mean_with_one_collective():
    def target() -> None:
        import torch.distributed as dist

        from trainer.models.batch_norm import average_running_statistics

        dist.init_process_group("gloo")
        calls, whole = [], dist.all_reduce
        dist.all_reduce = lambda tensor: calls.append(tensor.numel()) or whole(tensor)
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
        )
        torch.manual_seed(dist.get_rank())
        model(torch.rand(4, 1, 8, 8))
        statistics = (model[1].running_mean, model[2].running_var)
        both = [None, None]
        dist.all_gather_object(both, [t.clone() for t in statistics])
        assert not torch.equal(both[0][0], both[1][0])
        for _ in range(2):  # the second time changes nothing
            average_running_statistics(model)
            for i, tensor in enumerate(statistics):
                torch.testing.assert_close(tensor, (both[0][i] + both[1][i]) / 2)
        assert calls == [12, 12] and model[1].num_batches_tracked == 1
        average_running_statistics(torch.nn.Linear(2, 2))
        assert len(calls) == 2
        dist.destroy_process_group()

    run_ranks(target, 2)


def passes(norm: nn.Module, rows: slice, offset: float, dtype: torch.dtype) -> list[torch.Tensor]:
    """Of two steps: outputs, gradients of the input; the second step's of the parameters; the statistics."""
    found, norm = [], norm.to(dtype)
    for step in (1, 2):
        given = images(step, offset)[rows].to(dtype).requires_grad_()
        norm.zero_grad()
        answer = norm(given)
        wanted = torch.randn(ROWS, CHANNELS, 4, 5, generator=torch.Generator().manual_seed(9))[rows]
        (answer * wanted + answer.square() * 0.1).sum().backward()
        found += [answer.detach(), given.grad]
    return [*found, *(p.grad for p in norm.parameters()), norm.running_mean, norm.running_var]


@pytest.mark.parametrize(
    ("settings", "offset", "ranks", "dtype", "finest"),
    [
        ({}, 0.0, 1, torch.float32, 1e-5),
        ({}, 50.0, 2, torch.float32, 1e-5),
        ({"affine": False}, 0.0, 2, torch.float64, 1e-13),
        ({"momentum": None}, 0.0, 3, torch.float64, 1e-13),
    ],
)
def test_it_is_batch_norm_over_the_whole_batch(settings, offset, ranks, dtype, finest, tmp_path):
    """In fp64 too, where nothing but a mistake is larger than rounding."""
    whole = passes(layer(**settings), slice(None), offset, dtype)

    def rank() -> None:
        import os

        import torch.distributed as dist

        if ranks > 1:
            dist.init_process_group("gloo")
        number, own = int(os.environ["RANK"]), ROWS // ranks
        norm = layer(**settings)
        assert apply_synchronised_batch_norm(norm) == 1 and type(norm) is SynchronisedBatchNorm
        found = passes(norm, slice(number * own, (number + 1) * own), offset, dtype)
        torch.save([*found, norm.num_batches_tracked], tmp_path / f"{number}.pt")

    run_ranks(rank, ranks)
    parts = [torch.load(Path(tmp_path / f"{number}.pt"), weights_only=True) for number in range(ranks)]
    assert all(int(part[-1]) == 2 for part in parts)
    tolerance = {"rtol": finest, "atol": finest * (1 + offset)}
    for i, expected in enumerate(whole[:4]):  # by rows
        torch.testing.assert_close(torch.cat([part[i] for part in parts]), expected, **tolerance)
    for i, expected in enumerate(whole[4:-2], 4):  # sums of the ranks
        together = sum(part[i] for part in parts)
        torch.testing.assert_close(together, expected, rtol=finest, atol=10 * finest * (1 + offset))
    for i in (-3, -2):
        assert all(torch.equal(part[i], parts[0][i]) for part in parts), "equal on every rank"
        torch.testing.assert_close(parts[0][i], whole[i + 1], rtol=finest, atol=finest)

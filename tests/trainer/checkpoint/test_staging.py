"""The host memory of a snapshot: what is copied, of which type, and that it is taken once."""

from __future__ import annotations

import io

import torch

from trainer.checkpoint.state import Staging

TENSORS = (
    torch.arange(7, dtype=torch.float32),
    torch.arange(12, dtype=torch.float32).view(3, 4).t(),  # not in the order of its memory
    torch.tensor(3.5, dtype=torch.float64),
    torch.tensor([True, False, True]),
    torch.arange(5).to(torch.bfloat16),
    torch.empty(0, 3),
    torch.randn(2, 3, dtype=torch.complex64),
)


def test_copies_are_equal_and_do_not_change_with_what_was_copied():
    given = [tensor.clone() if tensor.is_contiguous() else tensor for tensor in TENSORS]
    copies = Staging().copy(given)
    for tensor, copy in zip(TENSORS, copies, strict=True):
        assert copy.dtype == tensor.dtype and torch.equal(copy, tensor)
    given[0].zero_()
    assert copies[0].tolist() == list(range(7))


def test_a_copy_that_is_written_brings_no_other_with_it():
    """torch.save writes all of a tensor's storage."""
    copies = Staging().copy([torch.zeros(100_000), torch.arange(3)])
    file = io.BytesIO()
    torch.save(copies[1], file)
    assert file.tell() < 4000
    assert [copy.untyped_storage().nbytes() for copy in copies] == [400_000, 24]


def test_the_memory_is_taken_once_and_again_only_for_more():
    staging = Staging()
    first = staging.copy([torch.ones(1000)])[0]
    assert staging.held_bytes in range(4000, 4100)
    again = staging.copy([torch.full((999,), 2.0)])[0]
    assert again.data_ptr() == first.data_ptr() and staging.held_bytes < 4100
    assert staging.copy([torch.ones(5000)])[0].sum() == 5000 and staging.held_bytes >= 20_000
    assert staging.copy([]) == []

"""What a failure is called, and whether the same start would fail again."""

from __future__ import annotations

import pytest

from stratlab_spec.exit_codes import (
    PeerLost,
    StorageFull,
    exit_code,
    is_storage_full,
    is_told_in_a_sentence,
    reason,
)


class OutOfMemoryError(RuntimeError):
    """Named like torch's."""


FULL, BAD_DISK = "No space left on device", "Input/output error"
RESET = "[gloo] Read error [127.0.0.1]:1: Connection reset by peer"


@pytest.mark.parametrize(
    ("failure", "code", "told"),
    [
        (OutOfMemoryError(), 10, True),
        (OSError(28, FULL), 13, True),
        (PeerLost("rank 1 has given up"), 134, True),
        (RuntimeError(RESET), 134, True),
        (RuntimeError("Timed out waiting 1800000ms for recv operation to complete"), 134, False),
        (RuntimeError("shapes do not match"), 1, False),
    ],
)
def test_a_failure_has_its_code_and_a_stack_where_a_sentence_does_not_tell(failure, code, told):
    assert (exit_code(failure), is_told_in_a_sentence(failure)) == (code, told)


@pytest.mark.parametrize(
    ("failure", "full"),
    [
        (RuntimeError(f"CheckpointException ... OSError: [Errno 28] {FULL}"), True),
        (RuntimeError("[enforce fail at inline_container.cc:603] . unexpected pos 704 vs 598"), True),
        (OSError(5, BAD_DISK), True),
        (StorageFull("rank 1: no space"), True),
        (RuntimeError("something else"), False),
        (FileNotFoundError(2, "No such file"), False),
    ],
)
def test_a_full_volume_is_known_by_its_words_and_by_its_cause(failure, full):
    assert is_storage_full(failure) is full
    wrapped = RuntimeError("saving failed")
    wrapped.__cause__ = failure
    assert is_storage_full(wrapped) is full


def test_a_signal_is_named():
    assert "11" in reason(139)

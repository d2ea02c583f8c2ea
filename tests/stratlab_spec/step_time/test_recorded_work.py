"""Recorded work for a question's sizes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from stratlab_spec.memory.recording import write_recordings
from stratlab_spec.step_time.kernels import ATTENTION, ELEMENTWISE, PACKED_ATTENTION, PRODUCT, Kernel
from stratlab_spec.step_time.recorded_work import (
    HostRecord,
    HostWork,
    LossPieces,
    RecordedOperation,
    RecordedWork,
    Segment,
    count_pieces,
    read_work,
    write_work,
)

SIZES = {"R": 3, "T": 100, "H": 64, "A": 2, "D": 32, "V": 1000}
PRODUCTS = RecordedOperation(PRODUCT, 1, ("1 R T", "1 H", "4 H"), ("2 R T H", "8 H H"), False)
ADDITION = RecordedOperation(ELEMENTWISE, 1, (), ("4 H H",), True)


def measure(row: RecordedOperation, segment: str = "middle", loss: LossPieces | None = None) -> Kernel:
    work = RecordedWork({}, {segment: Segment([row], [0] * 6)})
    ((kernel,),) = work.measure(SIZES, loss or LossPieces(1, 1), 40).values()
    return kernel


def test_a_product_has_twice_its_factors_as_flops() -> None:
    assert measure(PRODUCTS) == Kernel(PRODUCT, 2 * 300 * 64 * 256, 2 * 300 * 64 + 8 * 64 * 64)


def test_attention_computes_whole_tiles() -> None:
    """100 queries and keys are 128; a head of 32 counts as 64; a causal mask halves."""
    dense = RecordedOperation(ATTENTION, 1, ("1 R A", "1 T", "1 T", "1 D", "2"), ("1",), False)
    assert measure(dense).flops == 4 * 6 * 128 * 128 * 64 / 2


def test_packed_attention_sees_one_document() -> None:
    """300 tokens are 320, documents of 40 tokens are 64."""
    packed = RecordedOperation(PACKED_ATTENTION, 1, ("1 R T", "1 A", "1 D"), ("1",), False)
    assert measure(packed).flops == 4 * 2 * 320 * 64 * 64 / 2


def test_only_the_head_computes_the_loss_in_pieces() -> None:
    logits = RecordedOperation(ELEMENTWISE, 1, (), ("4 R T V",), False)
    assert measure(logits, "head", LossPieces(2, 8)).launches == 8
    assert measure(logits, "start", LossPieces(2, 8)).launches == 1
    assert measure(PRODUCTS, "head", LossPieces(2, 8)).launches == 1  # without words


def test_pieces_of_a_loss() -> None:
    assert count_pieces(4096, 2048, 256) == (2, 16)
    assert count_pieces(100, 2048, 256) == (1, 1)


def test_gradients_that_are_added_are_apart() -> None:
    work = RecordedWork({}, {"middle backward": Segment([PRODUCTS, ADDITION], [0] * 6)})
    found = work.measure(SIZES, LossPieces(1, 1), 40)
    assert [len(found[name]) for name in ("middle backward", "middle backward+")] == [1, 1]


def test_a_file_keeps_steps_and_work(tmp_path: Path) -> None:
    path = tmp_path / "family.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"recordings": [1]}).encode()))
    work = RecordedWork(
        {"flavor": "whole"},
        {"middle": Segment([PRODUCTS, ADDITION, PRODUCTS], [1, 2, 3, 4, 5.5, 6], 2, [PRODUCTS])},
    )
    host = HostRecord(
        "ddp", 2, {"optimizer": ([1, 0, 0, 0, 0, 0], 1, {COPY_KIND: [8, 1]}, {})}, {"head": [1, 9]}
    )
    write_work(path, [work], [host])
    (found,), (again,) = read_work(path)
    assert (found.settings, found.segments) == (work.settings, work.segments)
    assert found.host("middle") == HostWork(1, 2, 3, 4, 5.5, 6)
    assert again.weights == host.weights
    assert json.loads(gzip.decompress(path.read_bytes()))["recordings"] == [1]
    write_recordings(path, [], {})
    assert read_work.__wrapped__(path)[1][0].weights == host.weights


COPY_KIND = "copy"


def test_host_work_is_never_negative() -> None:
    assert HostWork(launches=3).plus(HostWork(launches=2, views=1), -2) == HostWork(launches=pytest.approx(0))

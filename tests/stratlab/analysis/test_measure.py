"""Shares of the ranks, read apart and merged, against one process: equal to the last digit."""

import os
from pathlib import Path

import numpy as np
import pytest

from stratlab import UserError
from stratlab.analysis.measure import SHARES, RankShare, parse_share
from stratlab.analysis.rank import load_reading, read_rank_trace, write_reading
from stratlab.analysis.run_analysis import analyze_run, analyze_share
from tests.codes import find_codes
from tests.stratlab.real_traces import unpack
from tests.stratlab.simulated.small import build_gpu_trace, write_run

pytestmark = pytest.mark.usefixtures("without_hta")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Eight ranks of a GPU run, one of them damaged."""
    traces = {rank: build_gpu_trace(rank, comm_start=600 + 10 * rank) for rank in range(8)}
    folder = write_run(tmp_path / "demo" / "run", traces, manifest=False)
    (folder / "traces" / "rank5_trace.json").write_text('{"traceEvents": [{"ph": "X"')
    return folder


@pytest.mark.parametrize("name", ["nccl_a100", "mi250_rocm62"])
def test_a_reading_comes_back_bit_by_bit(name, tmp_path):
    rank, file = next(iter(unpack(name, tmp_path).items()))
    reading = read_rank_trace(rank, file)
    write_reading(reading, tmp_path / "reading")
    again = load_reading(tmp_path / "reading")
    write_reading(again, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "reading").read_bytes()
    assert again.measured.calls.ends.dtype == np.int64 and again.measured.calls.ends.flags.writeable
    assert again.kernels == reading.kernels and again.memory == reading.memory
    np.testing.assert_array_equal(again.measured.calls.ends, reading.measured.calls.ends)


def test_what_is_missing_or_of_other_traces_is_named(run):
    def merge() -> list[str]:
        with pytest.raises(UserError) as refusal:
            analyze_run(run, tracking_uri=None, shares=2)
        return find_codes(refusal.value)

    analyze_share(run, RankShare(0, 2))
    assert merge() == ["SL-share-missing"]
    analyze_share(run, RankShare(1, 2))
    os.utime(run / "traces" / "rank2_trace.json", (0, 0))
    assert merge() == ["SL-share-other-trace"]
    analyze_share(run, RankShare(0, 2))
    content = run / SHARES / "1-of-2" / "share.json"
    text = content.read_text()
    content.write_text(text.replace('"axes": {', '"axes": {"tp": 2, '))
    assert merge() == ["SL-share-other-version"]
    content.write_text(text)
    (run / SHARES / "1-of-2" / "rank3").write_bytes(b"\x80")
    assert merge() == ["SL-reading-other-version"]
    assert not (run / "analysis").exists() and (run / SHARES).is_dir()


def test_a_share_that_cannot_be_is_refused():
    for text in ("", "2", "2/2", "-1/2", "0/0", "1/70000", "a/b"):
        with pytest.raises(UserError) as refusal:
            parse_share(text)
        assert find_codes(refusal.value) == ["SL-share-syntax"]

"""Shares of the ranks, read apart and merged, against one process: equal to the last digit."""

import os

import pytest

from stratlab.analysis.measure import SHARES, RankShare, parse_share
from stratlab.analysis.run_analysis import analyze_run, analyze_share
from tests.codes import find_codes
from tests.stratlab.raised import raised
from tests.stratlab.simulated.small import build_gpu_trace, write_run

pytestmark = pytest.mark.usefixtures("without_hta")


@pytest.fixture
def run(tmp_path):
    traces = {rank: build_gpu_trace(rank, comm_start=600 + 10 * rank) for rank in range(8)}
    folder = write_run(tmp_path / "demo" / "run", traces, manifest=False)
    (folder / "traces" / "rank5_trace.json").write_text('{"traceEvents": [{"ph": "X"')
    return folder


def test_what_is_missing_or_of_other_traces_is_named(run):
    def merge():
        return find_codes(raised(analyze_run, run, tracking_uri=None, shares=2))

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
        assert find_codes(raised(parse_share, text)) == ["SL-share-syntax"]

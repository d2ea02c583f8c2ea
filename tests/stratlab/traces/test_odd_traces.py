"""One odd value costs itself or its event, not the file; and it is named."""

import gzip
import json
from dataclasses import asdict
from typing import Any

import pytest

from stratlab.analysis.measure import measure_traces
from stratlab.traces.merge import merge_traces
from stratlab.traces.trace import load_trace
from tests.codes import find_codes
from tests.stratlab.simulated.small import build_gpu_trace, quote_numbers

ODD = (
    '{"ph": "X", "cat": "cpu_op", "name": "odd", "pid": 1, "tid": 1, "ts": 5100, "dur": 1, "args": {"x": 1}}'
)
UNKNOWN, LEFT_OUT = "SL-values-odd", "SL-events-odd"
COUNT = len(build_gpu_trace(0).events)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows without an odd event."""
    path = build_gpu_trace(0).write(tmp_path_factory.mktemp("whole") / "rank0_trace.json")
    return [asdict(row) for row in measure_traces({0: path}).ranks[0].rows]


@pytest.mark.parametrize(
    ("event", "kept", "codes"),
    [
        (ODD.replace('"x": 1', '"x": NaN'), 1, [UNKNOWN]),
        (ODD.replace('"x": 1', '"x": 1e999'), 1, []),
        (ODD.replace('"x": 1', f'"x": 1{"0" * 400}'), 1, []),
        (ODD.replace("odd", "half of \\ud83d"), 1, [UNKNOWN]),
        (ODD.replace('"tid": 1', '"tid": 140.5'), 1, []),
        (ODD.replace('"x": 1', '"dtype": 7, "Collective name": 5, "Process Group Description": [1]'), 1, []),
        (ODD.replace("5100", "NaN"), 0, [UNKNOWN, LEFT_OUT]),
        (ODD.replace('"x": 1', '"x": -inf'), 1, [UNKNOWN]),
        (ODD.replace('"x": 1', '"x": "nan, inf"'), 1, []),
        (ODD.replace("odd", "one odd \udcff byte"), 1, [UNKNOWN]),
        (ODD.replace("odd", "a \x01 control"), 1, []),
        (ODD.replace("5100", '"5100.5"'), 1, []),
        (ODD.replace("5100", '"noon"'), 0, [LEFT_OUT]),
        (ODD.replace('{"x": 1}', "[1]"), 0, [LEFT_OUT]),
    ],
)
def test_odd_value_costs_no_more_than_its_event(tmp_path, event, kept, codes, whole):
    text = build_gpu_trace(0).text()
    path = tmp_path / "rank0_trace.json"
    for content in (text, json.dumps(json.loads(text))):
        first, _, rest = content.partition('"traceEvents": [')
        path.write_text(f'{first}"traceEvents": [{event}, {rest}', errors="surrogateescape")
        assert len(load_trace(path).ts) == COUNT + kept
        measures = measure_traces({0: path})
        assert measures.findings == []
        (found,) = measures.ranks
        assert [asdict(row) for row in found.rows] == whole
        assert [code for finding in found.findings for code in find_codes(finding.reason)] == codes
    merged = merge_traces({0: path}, tmp_path / "merged.json.gz", offsets_ns={})
    assert merged.ranks == [0] and merged.events >= COUNT


def test_numbers_in_quotes_are_numbers(tmp_path):
    plain = build_gpu_trace(0)
    paths = [t.write(tmp_path / f"{i}.json") for i, t in enumerate((plain, quote_numbers(plain)))]
    first, second = (measure_traces({0: path}).ranks[0] for path in paths)
    for part in ("rows", "kernels", "collectives", "copies", "idle"):
        assert getattr(first, part) == getattr(second, part)
    times = []
    for path in paths:
        merge_traces({0: path}, out := path.with_suffix(".gz"), offsets_ns={})
        events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
        times.append([(e["ts"], e["dur"]) for e in events if e["ph"] == "X"])
    assert times[0] == times[1]


def test_odd_base_time(tmp_path):
    path, text = tmp_path / "rank0_trace.json", build_gpu_trace(0).text()
    bases = {'"1700000000000000000"': 1_700_000_000_000_000_000, "1.7e18": 1_700_000_000_000_000_000}
    for base in (*bases, "NaN", '"x"', "true", "1e400", "[1]", "1" + "0" * 40):
        for where in ('"traceName"', '"schemaVersion"'):
            path.write_text(text.replace(where, f'"baseTimeNanoseconds": {base}, {where}'))
            assert load_trace(path).origin_ns == bases.get(base, 0) + 5_000_500, base

import gzip
import json
import re

import pytest

from stratlab.traces.archives import collect_files
from stratlab.traces.experiments import find_hints, name_experiments, sort_experiments
from tests.codes import find_codes

NOTHING = (None, None)


def write(root, files):
    for number, (name, told) in enumerate(files.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(told, tuple):
            info = dict(zip(("rank", "world_size"), told, strict=True)) if told != NOTHING else {}
            event = {"ph": "X", "name": "x", "ts": number, "dur": 1}  # no two files are copies
            content = json.dumps({"distributedInfo": info, "traceEvents": [event]}).encode()
            told = gzip.compress(content) if name.endswith(".gz") else content
        path.write_bytes(told)
    scratch = root.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    return collect_files(root, scratch)


def sort(tmp_path, files, pattern=""):
    return sort_experiments(write(tmp_path / "all", files), "all", re.compile(pattern) if pattern else None)


def ranks(found):
    return {each.name: list(each.traces) for each in found.experiments}


def left_out(found):
    return [(name, find_codes(why)) for name, why in found.left_out]


def said(found):
    return [(finding.file, find_codes(finding.reason)) for finding in found.findings]


def only(found):
    (experiment,) = found.experiments
    return experiment


DIVISIONS = {
    # files, with the rank and the world size that they tell
    "a folder each": ("ddp/rank0.json ddp/rank1.json.gz fsdp/rank_0.json", {"ddp": [0, 1], "fsdp": [0]}),
    "deeper folders of one name": ("l/a/x/rank0.json l/b/x/rank0.json", {"a": [0], "b": [0]}),
    "folders that are told apart by two": (
        "a/small/rank0.json a/large/rank0.json b/small/rank0.json",
        {"a-large": [0], "a-small": [0], "b-small": [0]},
    ),
    "folders of ranks": ("ddp/rank0/t.json ddp/rank1/t.json", {"ddp": [0, 1]}),
    "folders of nodes": ("x/node0/a.json=0/2 x/node1/a.json=1/2 y/worker-3/z.json", {"x": [0, 1], "y": [3]}),
    "experiments called as nodes": (
        "node1/rank0.json node1/rank1.json node2/rank0.json",
        {"node1": [0, 1], "node2": [0]},
    ),
    "nothing but the source": ("0.json 1.json", {"all": [0, 1]}),
    "a pile of single traces": ("resnet.json bert.json=0/2", {"bert": [0], "resnet": [0]}),
    "a pile of experiments": ("a_rank0.json a_rank1.json b_rank0.json", {"a": [0, 1], "b": [0]}),
    "runs of two sizes": ("a-rank0.json=0/2 a-rank1.json=1/2 b-rank2.json=2/4", {"a": [0, 1], "b": [2]}),
    "torch's own names": (
        "x/pod-0_71.1694128201554.pt.trace.json=0/2 x/pod-1_68.1694128201559.pt.trace.json=1/2",
        {"x": [0, 1]},
    ),
    "workers": ("x/worker0_step_12.1694128201545.pt.trace.json", {"x": [0]}),
    "the trace tells, not the name": ("x/rank0.json=3/4", {"x": [3]}),
}


def behind(rank, size):
    """A trace that tells its rank at the end, far from the beginning."""
    event = b'{"ph": "X", "name": "%s", "ts": 1, "dur": 2},' % (b"x" * 200)
    info = b'{"rank": %d, "world_size": %d}' % (rank, size)
    return b'{"traceEvents": [' + (event * 20_000)[:-1] + b'], "distributedInfo": ' + info + b"}"


@pytest.mark.parametrize("ending", ("json", "json.gz"))
def test_what_the_end_of_a_trace_tells_comes_before_its_name(ending, tmp_path):
    contents = {f"x/rank{named}.{ending}": behind(rank, 4) for named, rank in ((0, 3), (1, 1))}
    if ending.endswith("gz"):
        contents = {name: gzip.compress(content) for name, content in contents.items()}
    found = only(sort(tmp_path, {**contents}))
    assert list(found.traces) == [1, 3] and found.world_size == 4
    assert {trace.rank_from for trace in found.traces.values()} == {"distributedInfo"}
    assert said(found) == [(f"x/rank0.{ending}", ["SL-rank-other-name"])]


def parse(text):
    files = {}
    for word in text.split():
        name, _, told = word.partition("=")
        rank, _, size = told.partition("/")
        files[name] = (int(rank), int(size)) if told else NOTHING
    return files


@pytest.mark.parametrize("case", DIVISIONS)
def test_experiments_and_their_ranks(case, tmp_path):
    text, expected = DIVISIONS[case]
    found = sort(tmp_path, parse(text))
    assert ranks(found) == expected and not any(each.refused for each in found.experiments)


def test_what_is_left_out_of_an_experiment_is_named(tmp_path):
    content = b'{"traceEvents": [{"ph": "X"}]}'
    files = {
        "x/rank0.json": content,
        "x/rank0.json.gz": gzip.compress(content),  # a copy
        "x/rank1.json": b"",
        "x/rank2.json": (2, 4),
        "x/rank7.json": (7, 4),
        "x/all.json": NOTHING,
        "x/config.json": b"{}",
    }
    found = sort(tmp_path, {**files, "y/rank0.json.gz": b"\x1f\x8b", "z.zip": b"PK"})
    first, second, third = found.experiments
    assert list(first.traces) == [0, 2] and first.world_size == 4
    assert sorted(said(first)) == [
        ("x/all.json", ["SL-rank-untold-beside"]),
        ("x/rank0.json.gz", ["SL-trace-copy"]),
        ("x/rank1.json", ["SL-file-empty"]),
        ("x/rank7.json", ["SL-rank-outside"]),
    ]
    assert left_out(found) == [("x/config.json", ["SL-trace-no-events"])]
    assert (second.name, find_codes(second.refused)) == ("y", ["SL-gzip-damaged"])
    assert (third.name, find_codes(third.refused)) == ("z", ["SL-archive-damaged"])


def test_the_pattern_comes_first_and_leaves_out_what_it_does_not_match(tmp_path):
    files = {f"x/gpu{i}.json": (0, None) for i in range(3)} | {"x/other.json": NOTHING}
    found = sort(tmp_path, files, r"gpu(\d+)")
    assert ranks(found) == {"x": [0, 1, 2]}
    assert left_out(found) == [("x/other.json", ["SL-rank-pattern-absent"])]
    assert only(found).traces[1].rank_from == "pattern"


NAMES = [
    ([(), ("x",)], ["all", "x"]),
    ([("report",), ("b",)], ["report-traces", "b"]),
    ([("a b",), ("a/b",), ("A_B",)], ["a_b", "a_b-2", "A_B-3"]),
    ([("...",), ("é" * 200,)], ["traces", "é" * 60]),
    ([("t", "a", "t"), ("t", "t")], ["a-t", "t"]),
]


def test_names():
    assert [name_experiments(paths, "all") for paths, _ in NAMES] == [names for _, names in NAMES]


HINTS = {
    r"pod-(\d+)": "a/pod-0_71.1700000000000.pt.trace.json a/pod-1_68.1700000000009.pt.trace.json",
    r"gpu(\d+)": "a/left_4711.1700000000000.pt.trace.json a/right_4712.1700000000000.pt.trace.json",
    r"dev(\d+)": "c/dev0/step100.json c/dev1/step100.json c/dev2/step100.json",
    r"x\.(\d+)": "a/x.0.json a/x.1.json",
    r"/gpu(\d+)": "gpu8/gpu0.json gpu8/gpu1.json",
    "ddp": "ddp/t.json fsdp/t.json",  # these have none
    "two": "a/rank0.json b/rank0.json",
    "own": "resnet.json=0/1 bert.json=0/1",
}


@pytest.mark.parametrize("pattern", HINTS)
def test_traces_that_may_be_ranks_of_one_run_are_named(pattern, tmp_path):
    experiments = sort(tmp_path, parse(HINTS[pattern])).experiments
    hints = find_hints(experiments)
    assert len(hints) == pattern.endswith(")")
    for sentence in hints:
        assert all(name in sentence for name in sorted(HINTS[pattern].split())[:2])
        assert f'--rank-pattern "{pattern}"' in sentence and find_codes(sentence) == ["SL-rank-hint"]
        assert all(("SL-rank-hint" in codes) for each in experiments for _, codes in said(each)[-1:])

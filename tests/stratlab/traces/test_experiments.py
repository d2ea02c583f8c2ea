from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratlab.traces import identity
from stratlab.traces.archives import Unpacked
from stratlab.traces.chunks import Limits, split_events
from stratlab.traces.experiment_names import name_experiments
from stratlab.traces.experiments import Experiment, Sorted, sort_experiments
from stratlab.traces.trace_files import collect_files

Told = tuple[int | None, int | None]  # rank, world size
NOTHING: Told = (None, None)


def write(root: Path, files: dict[str, Told | bytes]) -> Unpacked:
    """Traces that tell these, or these bytes."""
    for number, (name, told) in enumerate(files.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(told, tuple):
            info = {
                key: value
                for key, value in zip(("rank", "world_size"), told, strict=True)
                if value is not None
            }
            event = {"ph": "X", "name": "x", "ts": number, "dur": 1}  # no two files are copies
            content = json.dumps({"distributedInfo": info, "traceEvents": [event]}).encode()
        else:
            content = told
        path.write_bytes(
            gzip.compress(content) if name.endswith(".gz") and isinstance(told, tuple) else content
        )
    scratch = root.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    return collect_files(root, scratch)


def sort(tmp_path: Path, files: dict[str, Told | bytes], pattern: str = "") -> Sorted:
    return sort_experiments(write(tmp_path / "all", files), "all", re.compile(pattern) if pattern else None)


def ranks(found: Sorted) -> dict[str, list[int]]:
    return {each.name: list(each.traces) for each in found.experiments}


def only(found: Sorted) -> Experiment:
    (experiment,) = found.experiments
    return experiment


DIVISIONS: dict[str, tuple[dict[str, Told | bytes], dict[str, list[int]]]] = {
    "a folder each": (
        {"ddp/rank0.json": NOTHING, "ddp/rank1.json.gz": NOTHING, "fsdp/rank_0.json": NOTHING},
        {"ddp": [0, 1], "fsdp": [0]},
    ),
    "what all have in common is left out": (
        {"logs/ddp/traces/rank0.json": NOTHING, "logs/fsdp/traces/rank0.json": NOTHING},
        {"ddp": [0], "fsdp": [0]},
    ),
    "deeper folders of one name": (
        {"a/small/rank0.json": NOTHING, "a/large/rank0.json": NOTHING, "b/small/rank0.json": NOTHING},
        {"a-large": [0], "a-small": [0], "b-small": [0]},
    ),
    "folders of ranks": ({"ddp/rank0/t.json": NOTHING, "ddp/rank1/t.json": NOTHING}, {"ddp": [0, 1]}),
    "folders of nodes": (
        {"x/node0/a.json": (0, 2), "x/node1/a.json": (1, 2), "y/worker-3/z.json": NOTHING},
        {"x": [0, 1], "y": [3]},
    ),
    "experiments that are called as nodes": (
        {"node1/rank0.json": NOTHING, "node1/rank1.json": NOTHING, "node2/rank0.json": NOTHING},
        {"node1": [0, 1], "node2": [0]},
    ),
    "nothing but the source": ({"0.json": NOTHING, "1.json": NOTHING}, {"all": [0, 1]}),
    "names without a word of rank": ({"x/resnet.json": NOTHING}, {"x": [0]}),
    "a pile of single traces": ({"resnet.json": NOTHING, "bert.json": (0, 2)}, {"bert": [0], "resnet": [0]}),
    "a pile of experiments": (
        {f"{name}_rank{rank}.json": NOTHING for name in ("zero1", "zero2") for rank in (0, 1)},
        {"zero1": [0, 1], "zero2": [0, 1]},
    ),
    "runs of two sizes in one folder": (
        {"two-rank0.json": (0, 2), "two-rank1.json": (1, 2), "four-rank2.json": (2, 4)},
        {"four": [2], "two": [0, 1]},
    ),
    "torch's own names": (
        {"x/pod-0_71.1694128201554.pt.trace.json": (0, 2), "x/pod-1_68.1694128201559.pt.trace.json": (1, 2)},
        {"x": [0, 1]},
    ),
    "workers": ({"x/worker0_step_12.1694128201545.pt.trace.json": NOTHING}, {"x": [0]}),
    "the trace tells, not the name": ({"x/rank0.json": (3, 4)}, {"x": [3]}),
    "behind the events": (
        {
            "x/a.json": b'{"traceEvents": [{"ph": "X"}], "distributedInfo": {"rank": 1}}',
            "x/b.json": b'{"traceEvents": [{"ph": "i"}], "distributedInfo": {"rank": 0}}',
        },
        {"x": [0, 1]},
    ),
}


def behind(rank: int, size: int) -> bytes:
    """A trace that tells its rank at the end, far from the beginning."""
    event = b'{"ph": "X", "name": "%s", "ts": 1, "dur": 2},' % (b"x" * 200)
    info = b'{"rank": %d, "world_size": %d}' % (rank, size)
    return b'{"traceEvents": [' + (event * 20_000)[:-1] + b'], "distributedInfo": ' + info + b"}"


@pytest.mark.parametrize("ending", ("json", "json.gz"))
def test_what_the_end_of_a_trace_tells_comes_before_its_name(ending: str, tmp_path: Path) -> None:
    contents = {f"x/rank{named}.{ending}": behind(rank, 4) for named, rank in ((0, 3), (1, 1))}
    if ending.endswith("gz"):
        contents = {name: gzip.compress(content) for name, content in contents.items()}
    found = only(sort(tmp_path, {**contents}))
    assert list(found.traces) == [1, 3] and found.world_size == 4
    assert {trace.rank_from for trace in found.traces.values()} == {"distributedInfo"}
    assert [f.reason for f in found.findings] == ["named as rank 0, but of rank 3"]


def test_an_end_that_tells_nothing_is_not_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large trace that names no rank is looked at, not scanned."""
    content = behind(0, 1).replace(b"distributedInfo", b"somethingElse__")
    read: list[bytes] = []

    def count(path: Path, limits: Limits) -> Iterator[bytes]:
        for piece in split_events(path, limits):
            read.append(piece)
            yield piece

    monkeypatch.setattr(identity, "split_events", count)
    found = only(sort(tmp_path, {"x/rank2.json": content, "x/rank1.json.gz": gzip.compress(content)}))
    assert list(found.traces) == [1, 2] and not read


@pytest.mark.parametrize("case", DIVISIONS)
def test_experiments_and_their_ranks(case: str, tmp_path: Path) -> None:
    files, expected = DIVISIONS[case]
    found = sort(tmp_path, files)
    assert ranks(found) == expected
    assert not any(each.refused for each in found.experiments)


def test_two_traces_of_a_rank_are_refused_by_name_and_the_others_are_not(tmp_path: Path) -> None:
    cycles: dict[str, Told | bytes] = {
        f"ddp/pod-{rank}_{71 + rank}.16941282015{time}0.pt.trace.json": (rank, 2)
        for rank in (0, 1)
        for time in (1, 2)
    }
    found = sort(tmp_path, {**cycles, "fsdp/rank0.json": NOTHING})
    assert ranks(found) == {"ddp": [], "fsdp": [0]}
    refused = [each for each in found.experiments if each.refused]
    assert (
        refused
        and "is in 2 files, ddp/pod-0_71" in refused[0].refused
        and "--rank-pattern" in refused[0].refused
    )


def test_a_copy_is_left_out(tmp_path: Path) -> None:
    content = b'{"traceEvents": [{"ph": "X"}]}'
    found = only(sort(tmp_path, {"x/rank0.json": content, "x/rank0.json.gz": gzip.compress(content)}))
    assert list(found.traces) == [0] and not found.refused
    assert [(f.file, f.reason) for f in found.findings] == [
        ("x/rank0.json.gz", "holds the same as x/rank0.json")
    ]


def test_files_that_are_no_traces_are_left_out_and_named(tmp_path: Path) -> None:
    found = sort(tmp_path, {"x/rank0.json": NOTHING, "x/config.json": b"{}", "config.json": b"{}"})
    assert ranks(found) == {"x": [0]}
    assert found.left_out == [
        ("config.json", "holds no traceEvents"),
        ("x/config.json", "holds no traceEvents"),
    ]


def test_a_file_without_a_rank_beside_ranks_is_left_out(tmp_path: Path) -> None:
    found = only(sort(tmp_path, {"x/rank0.json": NOTHING, "x/rank1.json": NOTHING, "x/all.json": NOTHING}))
    assert list(found.traces) == [0, 1]
    ((finding),) = found.findings
    assert finding.file == "x/all.json" and finding.reason.startswith("names no rank")


def test_damage_is_named_in_its_experiment_and_alone_it_is_one(tmp_path: Path) -> None:
    files: dict[str, Told | bytes] = {
        "x/rank0.json": NOTHING,
        "x/rank1.json": b"",
        "y/rank0.json.gz": b"\x1f\x8b",
    }
    first, second = sort(tmp_path, {**files, "z.zip": b"PK"}).experiments[:2]
    assert [(f.file, f.reason, f.rank) for f in first.findings] == [("x/rank1.json", "empty file", 1)]
    assert second.name == "y" and "no trace of it can be used: damaged" in second.refused
    assert (
        sort(tmp_path, {})
        .experiments[2]
        .refused.startswith("no trace of it can be used: damaged, or not what")
    )


def test_ranks_beyond_the_world_are_left_out(tmp_path: Path) -> None:
    found = only(sort(tmp_path, {"x/rank0.json": (0, 2), "x/rank5.json": (5, 2)}))
    assert found.world_size == 2 and list(found.traces) == [0]
    assert found.findings[0].reason == "rank 5 of a run with 2 processes"


def test_the_pattern_comes_first_and_leaves_out_what_it_does_not_match(tmp_path: Path) -> None:
    files: dict[str, Told | bytes] = {f"x/gpu{i}.json": (0, None) for i in range(3)} | {
        "x/other.json": NOTHING
    }
    found = sort(tmp_path, files, r"gpu(\d+)")
    assert ranks(found) == {"x": [0, 1, 2]}
    assert found.left_out == [("x/other.json", r"--rank-pattern gpu(\d+) is not in its name")]
    assert only(found).traces[1].rank_from == "pattern"


BY_PATTERN: dict[str, tuple[str, list[str], dict[str, list[int]]]] = {
    "folders of devices": (
        r"(?:gpu|dev)(\d+)",
        ["c/dev0/step100.json", "c/dev1/step100.json", "c/gpu2/step100.json"],
        {"c": [0, 1, 2]},
    ),
    "folders of devices in two experiments": (
        r"dev(\d+)",
        ["c/dev0/a.json", "c/dev1/a.json", "d/dev0/a.json", "d/dev1/a.json"],
        {"c": [0, 1], "d": [0, 1]},
    ),
    "several steps of each": (
        r"dev(\d+)",
        [f"c/dev{rank}/{name}.json" for rank in (0, 1) for name in ("early", "late")],
        {"early": [0, 1], "late": [0, 1]},
    ),
    "a part of a folder's name": (
        r"dev(\d+)",
        ["c/dev0-a/t.json", "c/dev1-a/t.json", "c/dev0-b/t.json"],
        {"dev-a": [0, 1], "dev-b": [0]},
    ),
    "a greedy pattern": (
        r".*dev(\d+)",
        ["c/dev0/t.json", "c/dev1/t.json", "d/dev0/t.json"],
        {"c": [0, 1], "d": [0]},
    ),
    "names of files": (
        r"gpu(\d+)",
        [f"gpu{rank}_{name}.json" for rank in (0, 1) for name in ("ddp", "fsdp")],
        {"gpu_ddp": [0, 1], "gpu_fsdp": [0, 1]},
    ),
}


@pytest.mark.parametrize("case", BY_PATTERN)
def test_what_the_pattern_matches_divides_nothing(case: str, tmp_path: Path) -> None:
    pattern, names, expected = BY_PATTERN[case]
    found = sort(tmp_path, dict.fromkeys(names, NOTHING), pattern)
    assert ranks(found) == expected
    assert not any(each.refused for each in found.experiments)


NAMES: list[tuple[list[tuple[str, ...]], list[str]]] = [
    ([()], ["all"]),
    ([("a", "b", "c")], ["b-c"]),
    ([(), ("x",)], ["all", "x"]),
    ([("report",), ("b",)], ["report-traces", "b"]),
    ([("a b",), ("a/b",), ("A_B",)], ["a_b", "a_b-2", "A_B-3"]),
    ([("...",), ("b",)], ["traces", "b"]),
    ([("é" * 200,), ("b",)], ["é" * 60, "b"]),
    ([("t", "a", "t"), ("t", "t")], ["a-t", "t"]),
]


@pytest.mark.parametrize(("paths", "expected"), NAMES)
def test_names(paths: list[tuple[str, ...]], expected: list[str]) -> None:
    assert name_experiments(paths, "all") == expected

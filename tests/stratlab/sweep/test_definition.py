"""A sweep's file: what it means, and every mistake in it at once."""

import re

import pytest

from stratlab.sweep.definition import Sweep, list_varied, read_sweep
from stratlab.sweep.planned_release import LONGEST_NAME, expand
from tests.codes import find_codes
from tests.stratlab.raised import raised


def write(folder, text):
    file = folder / "sweep.yaml"
    file.write_text(text)
    return file


def refused(folder, text):
    first, *lines = str(raised(read_sweep, write(folder, text))).splitlines()
    assert first == f"{folder / 'sweep.yaml'}:"
    return [line.strip() for line in lines]


def assert_one_line_each(lines, expected):
    """A line of `expected` is a code and words that its sentence must have."""
    rows = [row.split() for row in expected.strip().splitlines()]
    for code, *words in rows:
        found = [line for line in lines if find_codes(line) == [code] and all(word in line for word in words)]
        assert len(found) == 1, (code, words, lines)
    assert len(lines) == len(rows), lines


def test_all_mistakes_come_at_once(tmp_path):
    lines = refused(
        tmp_path,
        f"""
        comparision: x
        namespace: Bad_Name
        matrix:
          strateggy: [ddp]
          run.config.model: [cnn, [1]]
          run.config.comparison: [a]
          run.nodes: [1, 2, 1]
          run.config.seed: []
        set: {{foo: 1, run.nodes: null, run..x: 1, run.config.strategy: ddp}}
        exclude: [{{run.config.modle: cnn}}, {{run.nodes: 3}}]
        repeats: 0
        parallel: {"x" * 1000}
        """,
    )
    assert_one_line_each(
        lines,
        """
        SL-sweep-key-unknown comparision comparison?
        SL-sweep-key-missing comparison:
        SL-sweep-value namespace='Bad_Name':
        SL-sweep-no-path strateggy strategy?
        SL-sweep-value matrix.run.config.model.1=[1]:
        SL-sweep-path-follows run.config.comparison
        SL-matrix-value-twice run.nodes
        SL-sweep-value matrix.run.config.seed=[]:
        SL-matrix-no-strategy matrix:
        SL-matrix-in-set run.nodes
        SL-sweep-no-path set: foo
        SL-sweep-value set.run.nodes=null:
        SL-sweep-no-path set: run..x
        SL-sweep-path-follows set: run.config.strategy
        SL-exclude-not-in-matrix run.config.modle run.config.model?
        SL-exclude-never run.nodes 3 2
        SL-sweep-value repeats=0: 1 100
        SL-sweep-value parallel='xxx 64
        """,
    )
    assert max(map(len, lines)) < 250, "a long value is cut"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"a: [1", "SL-sweep-not-yaml"),
        (b"repeats: 2024-13-45", "SL-sweep-not-yaml"),
        (b"- a", "SL-sweep-no-map"),
        (b"[" * 1000, "SL-sweep-too-deep"),
        (b"a: \xff", "SL-sweep-not-utf8"),
        (None, "SL-sweep-unreadable"),
    ],
)
def test_yaml_that_is_none(tmp_path, content, code):
    file = tmp_path / "sweep.yaml"
    if content is not None:
        file.write_bytes(content)
    failure = raised(read_sweep, file)
    assert find_codes(failure) == [code] and str(failure).startswith(f"{file}: ")


def test_what_is_wrong_with_a_tuning(tmp_path):
    text = """
        comparison: x
        matrix: {strategy: [ddp, fsdp], run.config.prefetch_blocks: [1, 2]}
        tune:
          stps: 30
          steps: 5
          candidates: 1
          metric: speed
          knobs:
            dpd: {static_graph: [true]}
            ddp: {reduce_bucket_mib: [50, 50]}
            fsdp: {prefetch_blocks: [2], accumulate: []}
    """
    assert_one_line_each(
        refused(tmp_path, text),
        """
        SL-sweep-key-unknown tune.stps: steps?
        SL-sweep-value tune.steps=5: 10
        SL-sweep-value tune.candidates=1: 2 100
        SL-sweep-value tune.metric='speed': throughput step_time memory
        SL-sweep-value tune.knobs.fsdp.accumulate=[]:
        SL-tune-no-strategy dpd ddp?
        SL-tune-value-twice ddp reduce_bucket_mib
        SL-tune-in-matrix fsdp run.config.prefetch_blocks
        """,
    )


def test_a_knob_that_no_candidate_could_reach_is_refused(tmp_path):
    text = """
comparison: demo
matrix: {strategy: [ddp]}
tune:
  steps: 30
  knobs: {ddp: {reduce_bucket_mib: [5, 50, 100], static_graph: [true]}}
"""
    assert_one_line_each(
        refused(tmp_path, text), "SL-tune-knob-unreachable tune.candidates=4: static_graph least 5"
    )
    assert read_sweep(write(tmp_path, text.replace("50, 100]", "50]")))


def test_what_is_varied_on_purpose(tmp_path):
    search = """
comparison: demo
matrix: {strategy: [ddp], run.config.lr: [0.1, 0.01], run.config.optimizer: [sgd, adamw], run.nodes: [1, 2]}
vary: VARIED
"""
    one, both = "run.config.lr", "[run.config.lr, run.config.optimizer]"
    for varied, names in ((one, ("lr",)), (both, ("lr", "optimizer")), ("[]", ())):
        assert list_varied(read_sweep(write(tmp_path, search.replace("VARIED", varied)))) == names
    assert list_varied(read_sweep(write(tmp_path, search.replace("vary: VARIED", f"varied: {one}")))) == (
        "lr",
    )
    wrong = "[lr, run.config.optimiser, run.nodes, strategy, run.config.seed]"
    lines = refused(tmp_path, search.replace("VARIED", wrong))
    assert find_codes(lines) == ["SL-sweep-varied-no-setting"] * 3 + ["SL-sweep-varied-refused"] * 2
    assert "run.config.lr?" in lines[0] and "run.config.optimizer?" in lines[1]


def build(matrix, **changes):
    return Sweep(**{"comparison": "demo", "matrix": {"strategy": ["ddp"]} | matrix} | changes)


def names(sweep):
    return [release.name for release in expand(sweep)]


def test_every_combination_once_and_the_repeats_last():
    sweep = build({"strategy": ["ddp", "fsdp"], "run.config.model": ["cnn", "vit_tiny"]}, repeats=2)
    once = ["demo-ddp-cnn", "demo-ddp-vit-tiny", "demo-fsdp-cnn", "demo-fsdp-vit-tiny"]
    assert names(sweep) == [*once, *(f"{name}-r2" for name in once)]
    first, *_, last = expand(sweep)
    assert (first.strategy, first.repeat, last.strategy, last.repeat) == ("ddp", 1, "fsdp", 2)
    assert first.values == {"run": {"config": {"model": "cnn", "comparison": "demo"}}}
    assert last.values == {"run": {"config": {"model": "vit_tiny", "comparison": "demo"}}}


def test_excluded_are_those_that_agree_with_all_keys():
    matrix = {"strategy": ["ddp", "fsdp"], "run.nodes": [1, 2]}
    sweep = build(matrix, exclude=[{"strategy": "fsdp", "run.nodes": 1}])
    assert names(sweep) == ["demo-ddp-nodes1", "demo-ddp-nodes2", "demo-fsdp-nodes2"]
    assert find_codes(raised(expand, build(matrix, exclude=[{"strategy": "ddp"}, {"strategy": "fsdp"}]))) == [
        "SL-exclude-leaves-none"
    ]


def test_names_that_are_too_long_or_alike_get_a_hash():
    (only,) = names(build({"run.config.dataset": ["a" * 80]}))
    assert re.fullmatch(r"demo-ddp-a+-[0-9a-f]{8}", only) and len(only) <= LONGEST_NAME
    alike = names(build({"run.config.dataset": ["x/y", "x_y", "z"]}))
    assert alike[2] == "demo-ddp-z" and alike[0] != alike[1]
    assert all(re.fullmatch(r"demo-ddp-x-y-[0-9a-f]{8}", name) for name in alike[:2])
    found = names(build({"run.config.dataset": ["x", "x-r2"]}, repeats=2))
    assert len(set(found)) == 4 and found[2] == "demo-ddp-x-r2", "a value that looks like a repeat is none"


@pytest.mark.parametrize("length", [38, 39])
def test_repeats_have_the_name_of_the_first(length):
    first, second, _ = names(build({"run.config.dataset": ["d" * length]}, repeats=3))
    assert second == f"{first}-r2" and (len(first) == 9 + length) is (length <= 38)

"""What a rank holds against an even share and against the promise: figures by hand, and planted ones that are wrong."""

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.efficiency import say_sharding
from stratlab.compare.placement import STATE
from stratlab.compare.run_sources import load_runs
from tests.stratlab.compare.building import edit, edit_ranks, judge, resolve, rows_of
from tests.stratlab.example_run import build_run_dir


def scale(root, runs, **common):
    """Name -> processes, samples per second, changes."""
    given = {
        name: {"world_size": size, "processes_per_node": size, "samples_per_s": speed, **changes}
        for name, (size, speed, changes) in runs.items()
    }
    return judge(root, given, **common)


def test_the_speed_up_by_hand_and_against_one_process(tmp_path):
    """single 480, two processes 800, four 1200: 1.5 times the two, 2.5 times the one."""
    speeds = {"single": (1, 480.0), "ddp-2": (2, 800.0), "ddp-4": (4, 1200.0)}
    report = scale(
        tmp_path, {run: (n, speed, {"grad_accum_steps": 16 // n}) for run, (n, speed) in speeds.items()}
    )
    (series,) = report["scaling"]
    assert series["single"] == {"runs": ["single"], "samples_per_s": pytest.approx(480.0)}
    assert [point["speedup_vs_single"] for point in series["points"]] == pytest.approx([800 / 480, 2.5])
    assert series["points"][1]["efficiency_vs_single_pct"] == pytest.approx(62.5)
    assert (series["backend"], series["repeats"]) == ("nccl", 1)
    row = rows_of(report)["ddp-4"]
    assert (row["speedup"], row["speedup_vs_single"]) == (pytest.approx(1.5), pytest.approx(2.5))


def test_repeats_give_the_speed_up_its_noise(tmp_path):
    """s = 1 %, two degrees of freedom, t(2) = 4.303; of as many repeats as each size has."""
    repeats, of_one, band = (0.99, 1.0, 1.01), (1.0,), 4.303 * 0.01 * (1 / 1 + 1 / 3) ** 0.5
    runs = {
        f"ddp-{size}{'abc'[i]}": (size, speed / factor, {"seed": i, "grad_accum_steps": 16 // size})
        for size, speed, factors in ((2, 1000.0, repeats), (4, 1600.0, of_one))
        for i, factor in enumerate(factors)
    }
    (series,) = scale(tmp_path, runs)["scaling"]
    first, last = series["points"]
    assert first["speedup_noise"] is None and series["repeats"] == len(of_one)
    assert last["speedup"] == pytest.approx(1.6, rel=1e-3)
    assert last["speedup_noise"] == pytest.approx(1.6 * band, rel=0.01)


GIB = 2**30
WEIGHTS = 1000
PROMISED = {  # strategy -> bytes per parameter of a rank of 4, AdamW in fp32, by hand; of 16
    "single": (4, 4, 8),
    "ddp": (4, 4, 8),
    "fsdp": (1, 1, 2),
    "zero1": (4 + 1, 4, 2),
    "zero2": (4 + 1, 1, 2),
    "zero3": (1 + 1, 1, 2),
    "zeropp": (1 + 1 + 2, 1, 2),  # and what two ranks of a node share once more
}

HALF = {"parameters": ["bfloat16", "float32"], "gradients": ["bfloat16"]}
"""With master copies in the state."""


def held(amounts):
    return {kind: size * WEIGHTS / GIB for kind, size in zip(STATE, amounts, strict=True)}


def judge_sharding(root, strategy, amounts, ranks=4, **changes):
    shard = 1 if strategy in ("single", "ddp") else ranks
    given = {"axes": {"dp_replicate": ranks // shard, "dp_shard": shard}, "trainable_parameters": WEIGHTS}
    # `parameters` is also a kind of what a rank holds, `dtypes` holds others' names: these are put in by hand
    types, weights = changes.pop("dtypes", {}), changes.pop("parameters", WEIGHTS)
    given |= {"world_size": ranks, "state_memory_gib": held(amounts), **changes}
    run = build_run_dir(root, "run", strategy, **given)
    resolve(run, parameters=weights)
    edit_ranks(run, lambda rank: rank["dtypes"].update(types))
    (entry,) = compare(load_runs(root))["sharding"]
    return dict(entry)


@pytest.mark.parametrize("strategy", PROMISED)
def test_what_is_promised_by_hand(tmp_path, strategy):
    ranks = 1 if strategy == "single" else 4
    entry = judge_sharding(tmp_path, strategy, PROMISED[strategy], ranks)
    total = sum(PROMISED[strategy])
    assert entry["state_gib"] * GIB == pytest.approx(16 * WEIGHTS)
    assert entry["even_share_gib"] * GIB == pytest.approx(16 * WEIGHTS / ranks)
    assert entry["promised_gib"] * GIB == pytest.approx(total * WEIGHTS)
    assert entry["sharding_effectiveness_pct"] == pytest.approx(100 * 16 / ranks / total)
    assert entry["promised_effectiveness_pct"] == pytest.approx(entry["sharding_effectiveness_pct"])
    assert entry["kept"] is True


@pytest.mark.parametrize(
    ("strategy", "amounts", "changes", "kept", "state"),
    [
        ("zeropp", (1 + 1, 1, 2), {"zeropp": "qwz"}, True, 16),  # without hpz no copy in the node
        ("zeropp", (1 + 1, 1, 2), {"zeropp": "qwz,hpz"}, False, 16),
        ("zeropp", (1, 1, 2), {"zeropp": "qwz,hpz"}, False, 16),
        ("hsdp", (2, 2, 4), {"axes": {"dp_replicate": 2, "dp_shard": 2}}, True, 16),  # divided by the shards alone
        ("zero2", (2 + 1, 0.5, 2), {"dtypes": HALF}, True, 16),
        ("ddp", (4, 0.04, 0.08), {"trainable_parameters": WEIGHTS // 100}, True, 4.12),  # adapters
        ("ddp", (4, 4, 4), {"optimizer": "sgd", "momentum": 0.9}, True, 12),
        ("ddp", (4, 4, 4), {"optimizer": "sgd", "momentum": 0.0}, False, 8),
        ("zero3", (4 + 1 + 1, 1, 2), {}, False, 16),  # small parameters stay whole
        ("zero1", (5, 1, 2), {}, True, 16),  # may have reduced its gradients already
        ("zero1", (5, 8, 2), {}, False, 16),
        ("ddp", (4, 4, 8), {"parameters": None}, None, None),
        ("ddp", (4, 4, 8), {"dtypes": {"parameters": ["int4"]}}, None, None),
    ],
)  # fmt: skip
def test_whether_the_promise_is_kept(tmp_path, strategy, amounts, changes, kept, state):
    entry = judge_sharding(tmp_path, strategy, amounts, **changes)
    assert entry["kept"] is kept and len(say_sharding([entry])) == (kept is False)
    if state is None:
        assert entry["sharding_effectiveness_pct"] is None
    else:
        assert entry["state_gib"] * GIB == pytest.approx(state * WEIGHTS)


def test_one_rank_that_holds_it_all_is_the_one_that_counts(tmp_path):
    judge_sharding(tmp_path, "fsdp", (1, 1, 2))
    edit(tmp_path / "run/ranks/rank2.json", lambda rank: rank.update(state_memory_gib=held((4, 4, 8))))
    (entry,) = compare(load_runs(tmp_path))["sharding"]
    assert entry["kept"] is False and entry["sharding_effectiveness_pct"] == pytest.approx(25.0)
    (tmp_path / "run/ranks/rank3.json").unlink()
    assert compare(load_runs(tmp_path))["sharding"][0]["kept"] is None

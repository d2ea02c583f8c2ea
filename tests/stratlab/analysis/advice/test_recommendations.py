"""Every rule fires just above its threshold and not just below it, and advises only what exists."""

from __future__ import annotations

import itertools
import json
import string
from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis.advice.evidence import build_values
from stratlab.analysis.advice.recommendations import apply_rules, build_recommendations
from stratlab.analysis.advice.rulebook.all_rules import RULES
from stratlab.analysis.reporting.run_facts import build_foreign_facts, read_facts
from tests.stratlab.analysis.example_report import blank, build_example
from trainer.settings.config import Config

SETTINGS = {
    "strategy": "ddp",
    "offload": "none",
    "compile": False,
    "activation_checkpointing": "none",
    "nodes": 1,
    "micro_batch_size": 32,
    "grad_accum_steps": 2,
    "world_size": 2,
    "processes_per_node": 2,
    "data_residence": "device",
    "precision": "bf16",
    "profile_memory": True,
}
EXPOSED = {"transfer_ms": 21.0, "comm_overlap_pct": 49.9}
FAR = {"nodes": 2, "strategy": "zero3", "transfer_ms": 31.0, "comm_overlap_pct": 90.0}

# rule, values with which it fires, the number in its title, one list of changes for each of which it does not
CASES: list[tuple[str, dict[str, Any], str, list[dict[str, Any]]]] = [
    (
        "R1",
        EXPOSED | {"transfer_pct": 20.1},
        "20 % of the step (21.00 ms)",
        [{"transfer_pct": 20.0}, {"comm_overlap_pct": 50.0}],
    ),
    (
        "R2",
        FAR | {"transfer_pct": 30.1},
        "across 2 nodes, 30 % of the step",
        [{"transfer_pct": 30.0}, {"nodes": 1}, {"strategy": "zero2"}],
    ),
    *(
        (
            "R3",
            {"launching_pct": 15.1, "gap_kind": kind, "gap_label": "## forward ##", "longest_gap_ms": 7.5},
            "waits 15 % of the step",
            [{"launching_pct": 15.0}, {"gap_kind": None}],
        )
        for kind in ("short", "first", "label", "long")
    ),
    (
        "R3",
        {"short_kernel_pct": 50.1, "kernels_per_step": 1001, "gap_kind": "short"},
        "50 % of 1001 kernels",
        [{"short_kernel_pct": 50.0}, {"kernels_per_step": 1000}, {"gap_kind": "long"}],
    ),
    ("R4", {"data_pct": 10.1}, "10 % of the step", [{"data_pct": 10.0}]),
    ("R5", {"straggler_pct": 10.1}, "10 % of the step is waiting", [{"straggler_pct": 10.0}]),
    ("R5", {"compute_imbalance": 1.11}, "1.11 times as long", [{"compute_imbalance": 1.1}]),
    (
        "R6",
        {"bubble_pct": 14.0, "bubble_ideal_pct": 10.0, "bubble_over_ideal": 1.31},
        "14 % of the step, 1.3 times its ideal of 10 %",
        [{"bubble_over_ideal": 1.3}],
    ),
    ("R6", {"bubble_pct": 25.1}, "bubble is 25 % of the step", [{"bubble_pct": 25.0}]),
    ("R7", {"memory_pct": 90.1}, "peak is 90 % of the device's 140 GiB", [{"memory_pct": 90.0}]),
    ("R7", {"memory_pct": 49.9}, "peak is 50 % of the device's 140 GiB", [{"memory_pct": 50.0}]),
    ("R8", {"held_back_pct": 20.1}, "20 % of the memory", [{"held_back_pct": 20.0}]),
    ("R8", {"allocations_per_step": 20_001}, "20001 allocations", [{"allocations_per_step": 20_000}]),
    (
        "R9",
        {"h2d_gbps": 4.9, "copy_exposed_pct": 5.1},
        "at 4.9 GB/s and take 5 %",
        [{"h2d_gbps": 5.0}, {"copy_exposed_pct": 5.0}],
    ),
    ("R10", {"optimizer_pct": 20.1}, "20 % of the step (10.00 ms)", [{"optimizer_pct": 20.0}]),
    ("R11", {"top_kernel_pct": 40.1}, "40 % of the compute time: sm90", [{"top_kernel_pct": 40.0}]),
    ("R12", {"unrecorded_launches": 77}, "77 launches and no kernels", [{"unrecorded_launches": 0}]),
    ("R12", {"source": "cpu"}, "traces of a CPU", [{"source": "gpu"}]),
    ("R12", {"missing_ranks": 1}, "1 of 2 ranks", [{"missing_ranks": 0}]),
    ("R12", {"traced_steps": 1}, "Only 1 step", [{"traced_steps": 2}]),
    ("R12", {"slowdown": 1.26}, "1.26 times as long", [{"slowdown": 1.25}]),
]
GPU_ONLY = {"R3", "R7", "R8", "R9", "R11"}


def values(**changes: Any) -> dict[str, Any]:
    return build_values(build_example(), SETTINGS, {}) | changes


def fired(**changes: Any) -> dict[str, dict[str, Any]]:
    return {entry["rule"]: entry for entry in apply_rules(values(**changes))}


def test_a_run_without_a_fault_gets_no_advice() -> None:
    assert apply_rules(values()) == []


@pytest.mark.parametrize(("rule", "firing", "number", "not_firing"), CASES)
def test_rule_fires_above_its_threshold_only(
    rule: str, firing: dict[str, Any], number: str, not_firing: list[dict[str, Any]]
) -> None:
    found = fired(**firing)
    assert set(found) == {rule}
    assert number in found[rule]["title"] and found[rule]["title"].endswith(".")
    assert found[rule]["advice"]
    assert all(isinstance(number, int | float) for number in found[rule]["evidence"].values())
    numeric = {name for name, value in firing.items() if isinstance(value, int | float)}
    if numeric:
        assert numeric & set(found[rule]["evidence"])
    for change in not_firing:
        assert rule not in fired(**(firing | change)), change


@pytest.mark.parametrize(("rule", "firing", "number", "not_firing"), CASES)
def test_rule_never_fires_on_an_unknown_value(
    rule: str, firing: dict[str, Any], number: str, not_firing: list[dict[str, Any]]
) -> None:
    for change in not_firing:
        assert rule not in fired(**(firing | dict.fromkeys(change))), change


def test_every_entry_of_the_table_has_a_case() -> None:
    assert sorted(rule for rule, *_ in CASES) == sorted(rule.id for rule in RULES)
    assert {rule.id for rule in RULES} == {f"R{i}" for i in range(1, 13)}


def test_the_document_lists_the_same_rules() -> None:
    text = (Path(__file__).resolve().parents[4] / "docs" / "analysis.md").read_text()
    said = [line for line in text.splitlines() if line.startswith("| R")]
    assert said == [
        f"| {rule.id} | {' and '.join(map(_condition, rule.when))} | {'yes' if rule.gpu_only else ''} |"
        for rule in sorted(RULES, key=lambda rule: int(rule.id[1:]))
    ]


def _condition(condition: tuple[str, str, Any]) -> str:
    name, sign, other = condition
    return f"`{name}` {sign} {f'{other:g}' if isinstance(other, int | float) else other}"


def test_a_report_full_of_unknown_numbers_gives_no_advice(tmp_path: Path) -> None:
    report = blank(build_example(collectives=True), keep=())
    assert apply_rules(build_values(report, {}, {})) == []


@pytest.mark.parametrize(("rule", "firing", "number", "not_firing"), CASES)
def test_on_a_cpu_rules_about_gpus_are_silent_and_the_others_say_what_they_saw(
    rule: str, firing: dict[str, Any], number: str, not_firing: list[dict[str, Any]]
) -> None:
    found = fired(**(firing | {"source": "cpu"}))
    assert "R12" in found and "host operator time" in found["R12"]["title"]
    assert (rule in found) == (rule not in GPU_ONLY)
    assert not GPU_ONLY & set(found)
    for entry in found.values():
        assert entry["rule"] == "R12" or entry["title"].startswith("On this CPU run: ")


def test_data_is_the_gap_on_a_gpu_and_the_label_on_a_cpu() -> None:
    report = build_example("cpu")
    report["mean"] |= {"data_ms": 30.0, "data_wait_pct": 0.0}
    assert build_values(report, {}, {})["data_pct"] == pytest.approx(30.0)
    report["source"] = "gpu"
    assert build_values(report, {}, {})["data_pct"] == 0.0


@pytest.mark.parametrize(("rule", "firing", "number", "not_firing"), CASES)
@pytest.mark.parametrize("kernel", ("attention", "flash attention", "gemm", "elementwise", "other"))
def test_of_foreign_traces_nothing_of_ours_is_advised(
    rule: str,
    firing: dict[str, Any],
    number: str,
    not_firing: list[dict[str, Any]],
    kernel: str,
    tmp_path: Path,
) -> None:
    """They have no settings of ours; what asks for one (zero3) cannot fire."""
    report = build_example()
    report["run"] = build_foreign_facts(tmp_path, "ddp", 2, "nccl", []).origin
    told = build_values(report, {}, {}) | {"top_kernel_kind": kernel}
    told |= {name: value for name, value in firing.items() if name not in ("nodes", "strategy")}
    found = apply_rules(told)
    assert [entry["rule"] for entry in found] == ([rule] if rule != "R2" else [])
    for entry in found:
        said = " ".join([entry["advice"], *entry["settings"]])
        ours = (
            "run.",
            "trainer",
            "project",
            "system/",
            "{",
            "is fused",
            *(f" {name} " for name in Config.model_fields if "_" in name),
        )
        assert not [word for word in ours if word in f" {said} "], said


@pytest.mark.parametrize("foreign", [True, False])
def test_kernels_are_fused_only_where_short_gaps_are_most_of_the_waiting(foreign: bool) -> None:
    for kind in ("short", "first", "label", "long", None):
        found = fired(
            launching_pct=60.0, gap_kind=kind, gap_label="x", longest_gap_ms=1.0, short_kernel_pct=90.0,
            kernels_per_step=5000, foreign=foreign,
        )  # fmt: skip
        said = " ".join([entry["advice"] for entry in found.values()])
        assert ("torch.compile" in said) == (kind == "short"), kind
        assert all(not entry["settings"] for entry in found.values()) or kind == "short"


def test_doubts_lower_the_others_by_one() -> None:
    assert fired(memory_pct=95.0)["R7"]["severity"] == "high"
    for doubt in ({"missing_ranks": 1}, {"traced_steps": 1}):
        found = fired(memory_pct=95.0, optimizer_pct=21.0, **doubt)
        assert (found["R7"]["severity"], found["R10"]["severity"]) == ("medium", "low")
        assert found["R12"]["severity"] == "medium"
    assert fired(memory_pct=95.0, slowdown=2.0)["R7"]["severity"] == "high"


def test_the_largest_share_is_high_and_comes_first() -> None:
    entries = apply_rules(
        values(**EXPOSED, transfer_pct=40.1, data_pct=30.0, launching_pct=39.0, memory_pct=45.0)
    )
    assert [(e["rule"], e["severity"]) for e in entries] == [
        ("R1", "high"),
        ("R3", "medium"),
        ("R4", "medium"),
        ("R7", "low"),
    ]
    assert fired(**EXPOSED, transfer_pct=40.0)["R1"]["severity"] == "medium"


def test_two_ways_to_fire_are_one_recommendation() -> None:
    (entry,) = apply_rules(values(launching_pct=20.0, short_kernel_pct=80.0, kernels_per_step=5000))
    assert "waits 20 %" in entry["title"] and "Also: 80 % of 5000 kernels" in entry["advice"]
    assert entry["evidence"]["short_kernel_pct"] == 80.0 and entry["evidence"]["launching_pct"] == 20.0


@pytest.mark.parametrize(
    ("rule", "changes", "settings"),
    [
        ("R1", EXPOSED | {"transfer_pct": 30.0}, {}),
        ("R1", EXPOSED | {"transfer_pct": 30.0, "strategy": "fsdp"}, {"run.config.micro_batch_size": "64"}),
        (
            "R1",
            EXPOSED | {"transfer_pct": 30.0, "strategy": "fsdp", "nodes": 2, "double_micro_batch": None},
            {"run.config.strategy": "hsdp"},
        ),
        ("R1", EXPOSED | {"transfer_pct": 30.0, "strategy": "zero2"}, {"run.config.strategy": "zero1"}),
        (
            "R1",
            EXPOSED | {"transfer_pct": 30.0, "strategy": "zero1", "memory_pct": 49.9},
            {"run.config.strategy": "ddp"},
        ),
        ("R1", EXPOSED | {"transfer_pct": 30.0, "strategy": "zero1", "memory_pct": 50.0}, {}),
        ("R2", FAR | {"transfer_pct": 31.0, "memory_pct": 79.9}, {"run.config.strategy": "zero2"}),
        (
            "R2",
            FAR | {"transfer_pct": 31.0, "memory_pct": 80.0},
            {"run.config.strategy": "zeropp", "run.config.zeropp": "hpz"},
        ),
        ("R2", FAR | {"transfer_pct": 31.0, "memory_pct": 80.0, "processes_per_node": 1}, {}),
        ("R3", {"launching_pct": 20.0}, {"run.config.compile": "true"}),
        ("R3", {"launching_pct": 20.0, "strategy": "zero3"}, {"run.config.micro_batch_size": "64"}),
        ("R3", {"launching_pct": 20.0, "compile": True, "double_micro_batch": None}, {}),
        ("R4", {"data_pct": 20.0}, {}),
        ("R4", {"data_pct": 20.0, "data_residence": "stream"}, {"run.config.data_residence": "device"}),
        ("R6", {"bubble_pct": 26.0}, {"run.config.micro_batch_size": "16"}),
        ("R7", {"memory_pct": 91.0}, {"run.config.activation_checkpointing": "selective"}),
        (
            "R7",
            {"memory_pct": 91.0, "activation_checkpointing": "selective"},
            {"run.config.activation_checkpointing": "blocks"},
        ),
        ("R7", {"memory_pct": 91.0, "activation_checkpointing": "blocks"}, {"run.config.strategy": "zero1"}),
        (
            "R7",
            {"memory_pct": 91.0, "activation_checkpointing": "blocks", "next_strategy": ""},
            {"run.config.micro_batch_size": "16"},
        ),
        ("R7", {"memory_pct": 40.0, "offload": "all"}, {"run.config.offload": "none"}),
        ("R7", {"memory_pct": 40.0}, {"run.config.micro_batch_size": "64"}),
        (
            "R7",
            {"memory_pct": 40.0, "double_micro_batch": None, "previous_strategy": "zero2"},
            {"run.config.strategy": "zero2"},
        ),
        ("R8", {"held_back_pct": 21.0}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        (
            "R9",
            {"h2d_gbps": 2.0, "copy_exposed_pct": 9.0, "offload": "all"},
            {"run.config.offload": "none"},
        ),
        ("R10", {"optimizer_pct": 30.0}, {"run.config.strategy": "zero1"}),
        ("R10", {"optimizer_pct": 30.0, "strategy": "zero2"}, {}),
        ("R11", {"top_kernel_pct": 50.0, "precision": "fp32"}, {"run.config.precision": "bf16"}),
        (
            "R11",
            {"top_kernel_pct": 50.0, "top_kernel_kind": "elementwise"},
            {"run.config.compile": "true"},
        ),
        ("R12", {"slowdown": 1.5}, {"run.config.profile_memory": "false"}),
    ],
)
def test_settings_fit_the_run(rule: str, changes: dict[str, Any], settings: dict[str, str]) -> None:
    assert fired(**changes)[rule]["settings"] == settings


def test_only_settings_that_exist_are_advised_with_values_that_they_take() -> None:
    """Every remedy of every rule, with every strategy that its conditions allow."""
    known = values(next_strategy="zero2", previous_strategy="zero1")
    for remedy in itertools.chain.from_iterable(rule.remedies for rule in RULES):
        for name, template in remedy.settings.items():
            value = template.format_map(known)
            if not name.startswith("run.config."):
                assert name == "PYTORCH_ALLOC_CONF"
                continue
            setting = name.removeprefix("run.config.")
            assert setting in Config.model_fields, name
            base = {"TRAINER_RUN": "r"}
            base |= {"TRAINER_STRATEGY": "zeropp"} if setting == "zeropp" else {}
            Config.from_env(base | {f"TRAINER_{setting.upper()}": value})


def test_texts_name_only_values_that_exist() -> None:
    known = set(values())
    for rule in RULES:
        texts = [rule.title, *(text for r in rule.remedies for text in (r.advice, *r.settings.values()))]
        names = {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}
        names |= {condition[0] for condition in rule.when} | set(rule.evidence) | {rule.lead}
        names |= {condition[0] for remedy in rule.remedies for condition in remedy.when}
        assert names <= known, (rule.id, names - known)


def test_the_late_rank_and_its_host_are_named(tmp_path: Path) -> None:
    """From files: the settings of config.json, the host of ranks/rank1.json."""
    run = tmp_path / "run"
    (run / "ranks").mkdir(parents=True)
    (run / "ranks" / "rank1.json").write_text('{"rank": 1, "host": "node-b"}')
    (run / "ranks" / "rank0.json").write_text("{broken")
    content = {"run": "run", "config": {"compile": False, "strategy": "fsdp"}, "resolved": {"world_size": 2}}
    (run / "config.json").write_text(json.dumps(content))
    report = build_example()
    report["mean"] |= {"straggler_pct": 12.0, "host_wait_pct": 16.0, "slowest_rank": None}
    found = {entry["rule"]: entry for entry in build_recommendations(report, read_facts(run))}
    assert "no rank is late by more than chance explains" in found["R5"]["title"]
    assert "take turns at being last" in found["R5"]["advice"] and "late_rank" not in str(
        found["R5"]["evidence"]
    )
    report["mean"]["slowest_rank"] = 1
    found = {entry["rule"]: entry for entry in build_recommendations(report, read_facts(run))}
    assert (
        "rank 1 on node-b is late by more than chance explains; it came last in 20 of 30 calls"
        in found["R5"]["title"]
    )
    assert "Look at that rank's host" in found["R5"]["advice"]
    assert found["R3"]["settings"] == {"run.config.compile": "true"}
    assert json.dumps(list(found.values()), allow_nan=False)
    report["mean"] |= {"straggler_pct": 0.0, "compute_imbalance": 1.2, "slowest_rank": 1}
    found = {entry["rule"]: entry for entry in build_recommendations(report, read_facts(run))}
    assert "The slowest rank, 1 on node-b, computes 1.20 times" in found["R5"]["title"]


def test_unreadable_settings_are_unknown(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text('{"run": "run"}')
    report = build_example()
    report["mean"] |= {"host_wait_pct": 16.0}
    (entry,) = build_recommendations(report, read_facts(run))
    assert entry["settings"] == {"run.config.micro_batch_size": "64"}  # compile: not known whether it is on


def test_memory_is_that_of_the_rank_with_most() -> None:
    report = build_example()
    report["ranks"][1] |= {"peak_allocated_gib": 130.0}
    assert build_values(report, SETTINGS, {})["memory_pct"] == pytest.approx(100 * 130 / 140)
    report["mean"]["device_memory_gib"] = None
    assert build_values(report, SETTINGS, {})["memory_pct"] is None


def test_memory_counts_against_the_device_that_the_trace_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"run": "run"}')
    report = build_example()
    report["ranks"][1] |= {"peak_allocated_gib": 76.0, "peak_reserved_gib": 80.0}
    report["mean"] |= {"peak_allocated_gib": 76.0, "peak_reserved_gib": 80.0, "device_memory_gib": 80.0}
    report["ranks"] = report["ranks"][1:]
    (entry,) = build_recommendations(report, read_facts(tmp_path))
    assert entry["rule"] == "R7" and "95 % of the device's 80 GiB" in entry["title"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, x>", "elementwise"),
        ("flash_fwd_kernel", "flash attention"),
        ("softmax_warp_forward", "attention"),
        ("nvjet_hsh_192x192", "gemm"),
        ("adamw", "other"),
    ],
)
def test_kernels_are_told_apart_by_name(name: str, kind: str) -> None:
    report = build_example()
    report["kernels"] = [
        {"rank": 0, "name": name, "type": "compute", "sum_ms": 3.0},
        {"rank": 1, "name": name, "type": "compute", "sum_ms": 3.0},
        {"rank": 0, "name": "small", "type": "compute", "sum_ms": 4.0},
        {"rank": 0, "name": "ncclKernel", "type": "comm", "sum_ms": 99.0},
    ]
    found = build_values(report, {}, {})
    assert (found["top_kernel"], found["top_kernel_kind"]) == (name, kind)
    assert found["top_kernel_pct"] == pytest.approx(60.0)

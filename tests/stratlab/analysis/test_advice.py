"""Every rule fires just above its threshold and not just below it, and advises only what exists."""

import itertools
import string

import pytest

from stratlab.analysis.advice import apply_rules, build_values
from stratlab.analysis.advice_rules import RULES
from stratlab.analysis.run_facts import build_foreign_facts
from stratlab_spec.settings.config import Config
from tests.stratlab.analysis.example_report import blank, build_example

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
BUBBLE = {"bubble_pct": 14.0, "bubble_ideal_pct": 10.0, "bubble_excess_pct": 4.0}
GAP = {"gap_label": "x", "longest_gap_ms": 7.5}

# rule, other values, value -> (with which it fires, with which it does not), a number in its title
CASES = [
    ("R1", {"transfer_ms": 21.0}, {"transfer_pct": (20.1, 20.0), "comm_overlap_pct": (49.9, 50.0)}, "21.00"),
    ("R2", FAR, {"transfer_pct": (30.1, 30.0), "nodes": (2, 1), "strategy": ("zero3", "zero2")}, "30 %"),
    *(("R3", GAP, {"launching_pct": (15.1, 15.0), "gap_kind": (kind, None)}, "15 %")
      for kind in ("short", "first", "label", "long")),
    ("R3", {}, {"short_kernel_pct": (50.1, 50.0), "kernels_per_step": (1001, 1000), "gap_kind": ("short", "long")},
     "1001"),
    ("R4", {}, {"data_pct": (10.1, 10.0)}, "10 %"),
    ("R5", {}, {"straggler_pct": (10.1, 10.0)}, "10 %"),
    ("R5", {}, {"compute_imbalance": (1.11, 1.1)}, "1.11"),
    ("R6", BUBBLE, {"bubble_over_ideal": (1.31, 1.3)}, "1.3 "),
    ("R6", {}, {"bubble_pct": (25.1, 25.0)}, "25 %"),
    ("R7", {}, {"memory_pct": (90.1, 90.0)}, "90 % of the device's 140 GiB"),
    ("R7", {}, {"memory_pct": (49.9, 50.0)}, "50 % of the device's 140 GiB"),
    ("R8", {}, {"held_back_pct": (20.1, 20.0)}, "20 %"),
    ("R8", {}, {"allocations_per_step": (20_001, 20_000)}, "20001"),
    ("R9", {}, {"h2d_gbps": (4.9, 5.0), "copy_exposed_pct": (5.1, 5.0)}, "4.9 GB/s"),
    ("R10", {}, {"optimizer_pct": (20.1, 20.0)}, "20 %"),
    ("R11", {}, {"top_kernel_pct": (40.1, 40.0)}, "40 %"),
    ("R12", {}, {"unrecorded_launches": (77, 0)}, "77"),
    ("R12", {}, {"source": ("cpu", "gpu")}, "CPU"),
    ("R12", {}, {"missing_ranks": (1, 0)}, "1 of 2"),
    ("R12", {}, {"traced_steps": (1, 2)}, "1 step"),
    ("R12", {}, {"slowdown": (1.26, 1.25)}, "1.26"),
]  # fmt: skip
GPU_ONLY = {"R3", "R7", "R8", "R9", "R11"}
OF_NO_TIME = {"R7", "R8", "R11", "R12"}


def values(**changes):
    return build_values(build_example(), SETTINGS, {}) | changes


def fired(**changes):
    return {entry["rule"]: entry for entry in apply_rules(values(**changes))}


def test_a_run_without_a_fault_gets_no_advice():
    assert apply_rules(values()) == []
    report = blank(build_example(collectives=True), keep=())
    assert apply_rules(build_values(report, {}, {})) == [], "nothing is known"


@pytest.mark.parametrize(("rule", "base", "borders", "number"), CASES)
def test_rule_fires_above_its_threshold_only(rule, base, borders, number, tmp_path):
    firing = base | {name: above for name, (above, _) in borders.items()}
    found = fired(**firing)
    assert set(found) == {rule} and number in found[rule]["title"] and found[rule]["advice"]
    assert all(isinstance(value, int | float) for value in found[rule]["evidence"].values())
    assert (found[rule]["at_most_ms"] is None) == (rule in OF_NO_TIME)
    numeric = {name for name in borders if isinstance(firing[name], int | float)}
    assert not numeric or numeric & set(found[rule]["evidence"])
    for name, (_, below) in borders.items():
        assert rule not in fired(**firing | {name: below}), name
        assert rule not in fired(**firing | {name: None}), name
    on_cpu = fired(**firing | {"source": "cpu"})
    assert "R12" in on_cpu and not GPU_ONLY & set(on_cpu) and (rule in on_cpu) == (rule not in GPU_ONLY)


@pytest.mark.parametrize("kernel", ("attention", "flash attention", "gemm", "elementwise", "other"))
def test_of_foreign_traces_nothing_of_ours_is_advised(kernel, tmp_path):
    """They have no settings of ours; what asks for one (zero3) cannot fire."""
    report = build_example()
    report["run"] = build_foreign_facts(tmp_path, "ddp", 2, "nccl", []).origin
    ours = ("run.", "trainer", "project", "system/", "{", "is fused")
    ours += tuple(f" {name} " for name in Config.model_fields if "_" in name)
    for rule, base, borders, _ in CASES if kernel == "other" else CASES[-6:-5]:
        told = build_values(report, {}, {}) | {"top_kernel_kind": kernel} | base
        told |= {name: above for name, (above, _) in borders.items()} | {"nodes": None, "strategy": None}
        found = apply_rules(told)
        assert [entry["rule"] for entry in found] == ([rule] if rule != "R2" else [])
        said = " ".join(text for entry in found for text in [entry["advice"], *entry["settings"]])
        assert not [word for word in ours if word in f" {said} "], said


def test_doubts_lower_the_others_by_one():
    assert fired(memory_pct=95.0)["R7"]["severity"] == "high"
    for doubt in ({"missing_ranks": 1}, {"traced_steps": 1}):
        found = fired(memory_pct=95.0, optimizer_pct=21.0, **doubt)
        assert (found["R7"]["severity"], found["R10"]["severity"]) == ("medium", "low")
        assert found["R12"]["severity"] == "medium"
    assert fired(memory_pct=95.0, slowdown=2.0)["R7"]["severity"] == "high"


def test_the_largest_share_is_high_and_comes_first():
    shares = {"transfer_pct": 40.1, "data_pct": 30.0, "launching_pct": 39.0, "memory_pct": 45.0}
    entries = [(e["rule"], e["severity"]) for e in apply_rules(values(**EXPOSED, **shares))]
    assert entries == [("R1", "high"), ("R3", "medium"), ("R4", "medium"), ("R7", "low")]
    assert fired(**EXPOSED, transfer_pct=40.0)["R1"]["severity"] == "medium"


def test_advice_can_save_what_it_is_about_and_no_more():
    """Of a step of 200 ms; the bubble above its ideal, the compute above the mean."""
    report = build_example()
    report["mean"] |= {"step_ms": 200.0, "compute_pct": 60.0, "compute_imbalance": 1.5, "host_wait_pct": 30.0}
    report["mean"] |= {
        "bubble_pct": 20.0,
        "bubble_ideal_pct": 12.0,
        "launch_wait_pct": 10.0,
        "straggler_pct": 0.0,
    }
    found = {entry["rule"]: entry["at_most_ms"] for entry in apply_rules(build_values(report, SETTINGS, {}))}
    assert found == pytest.approx({"R3": 80.0, "R5": 60.0, "R6": 16.0})
    report["mean"]["step_ms"] = None
    assert apply_rules(build_values(report, SETTINGS, {}))[0]["at_most_ms"] is None


R1 = EXPOSED | {"transfer_pct": 30.0}
R2 = FAR | {"transfer_pct": 31.0}


@pytest.mark.parametrize(
    ("rule", "changes", "settings"),
    [
        ("R1", R1, ""),
        ("R1", R1 | {"strategy": "fsdp", "nodes": 2, "double_micro_batch": None}, "strategy=hsdp"),
        ("R1", R1 | {"strategy": "zero1", "memory_pct": 49.9}, "strategy=ddp"),
        ("R1", R1 | {"strategy": "zero1", "memory_pct": 50.0}, ""),
        ("R2", R2 | {"memory_pct": 79.9}, "strategy=zero2"),
        ("R2", R2 | {"memory_pct": 80.0}, "strategy=zeropp zeropp=hpz"),
        ("R3", {"launching_pct": 20.0}, "compile=true"),
        ("R3", {"launching_pct": 20.0, "strategy": "zero3"}, "micro_batch_size=64"),
        ("R4", {"data_pct": 20.0, "data_residence": "stream"}, "data_residence=device"),
        ("R7", {"memory_pct": 91.0}, "activation_checkpointing=selective"),
        ("R7", {"memory_pct": 91.0, "activation_checkpointing": "blocks"}, "strategy=zero1"),
        ("R7", {"memory_pct": 40.0, "offload": "all"}, "offload=none"),
        ("R7", {"memory_pct": 40.0}, "micro_batch_size=64"),
        ("R11", {"top_kernel_pct": 50.0, "precision": "fp32"}, "precision=bf16"),
    ],
)
def test_settings_fit_the_run(rule, changes, settings):
    expected = {
        f"run.config.{name}": value for name, _, value in (word.partition("=") for word in settings.split())
    }
    assert fired(**changes)[rule]["settings"] == expected


def test_only_settings_and_values_that_exist_are_named():
    known = values(next_strategy="zero2", previous_strategy="zero1")
    for rule in RULES:
        texts = [rule.title, rule.elsewhere, rule.otherwise]
        texts += [text for r in rule.remedies for text in (r.advice, *r.settings.values())]
        names = {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}
        names |= {condition[0] for condition in rule.when} | {*rule.evidence, rule.lead or rule.when[0][0]}
        names |= {condition[0] for remedy in rule.remedies for condition in remedy.when}
        assert names <= set(known), (rule.id, names - set(known))
    for remedy in itertools.chain.from_iterable(rule.remedies for rule in RULES):
        for name, template in remedy.settings.items():
            if not name.startswith("run.config."):
                assert name == "PYTORCH_ALLOC_CONF"
                continue
            setting = name.removeprefix("run.config.")
            base = {"TRAINER_RUN": "r"} | ({"TRAINER_STRATEGY": "zeropp"} if setting == "zeropp" else {})
            Config.from_env(base | {f"TRAINER_{setting.upper()}": template.format_map(known)})


def test_memory_is_that_of_the_rank_with_most_of_the_device_that_the_trace_names():
    report = build_example()
    report["ranks"][1] |= {"peak_allocated_gib": 130.0}
    for size_gib, share in ((140.0, 100 * 130 / 140), (200.0, 65.0), (None, None)):
        report["mean"]["device_memory_gib"] = size_gib
        assert build_values(report, SETTINGS, {})["memory_pct"] == (share and pytest.approx(share))

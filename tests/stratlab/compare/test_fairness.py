"""The audit: which facts forbid a comparison, by hand; and what it makes of each kind of fact."""

import json
from pathlib import Path

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.fairness import loss_agreement
from stratlab.compare.rules import IMPLIED, RULES, TASKS
from stratlab.compare.run_sources import load_runs
from stratlab.run_directory.record import RunRecord
from tests.stratlab.compare.building import build, difference, edit, edit_ranks

# what bends the training or the step
MATTERS = """
dataset task image_column label_column augment preprocessing resolved.data_residence tokenizer_sha256 seq_len
resolved.seq_len packing validation_fraction data_sha256 text resolved.train_samples validation_samples test_samples
num_labels data_order_sha256 mode model model_layers model_hidden model_heads model_kv_heads model_intermediate
model_patch model_vocab init lora_rank lora_alpha lora_targets resolved.image_size image_channels parameters
trainable_parameters flops_per_sample flops_per_token initial_weights_sha256 seed resolved.steps global_batch_size
micro_batch_size optimizer lr lr_schedule warmup_steps weight_decay momentum nesterov beta1 beta2 eps
resolved.precision tf32 activation_checkpointing compile label_smoothing distill_temperature distill_alpha
teacher_sha256 batch_norm batch_norm_samples loss_chunk_tokens clip_norm tuning world_size nodes processes_per_node
device_type device_name backend python torch deepspeed image git_sha resolved.profile_first_step profile_warmup
profile_steps profile_shapes profile_memory memory_snapshot flight_recorder fault resumed_from rungs attempts
skipped_steps not_finite_steps
"""
MATTERS_TOO = {
    *("steps done", "parameter dtypes", "gradient dtypes", "optimizer dtypes", "reduction dtypes"),
    *("product dtypes", "device of every rank", "processor of every rank", "ranks on each node"),
    *("runs beside it", "GPU power_limit_w", "GPU clock_limit_mhz", "GPU memory_clock_limit_mhz"),
    *("GPU clock reached", "GPU slowed by heat or a power brake"),
    *("transport within a node", "transport between nodes", "GPUDirect RDMA", "transport fell back"),
}
NOT_IN_EXAMPLES = {
    *(
        "resumed_from",
        "rungs",
        "batch_norm_samples",
        "resolved.memory_forecast",
        "resolved.step_time_forecast",
    ),
    "teacher_sha256",
    *("teacher_parameters", "teacher_flops_per_sample"),
}

H200 = Path("tests/data/runs/h200")


@pytest.fixture
def root(tmp_path):
    return build(tmp_path / "demo", ("ddp", "fsdp", "zero2"), device="cpu")


def report(root):
    return compare(load_runs(root))


def put(root, place, name, value, *runs):
    file = "summary.json" if place == "summary" else "config.json"
    for run in runs or ("fsdp",):
        edit(root / run / file, lambda content: content.get(place, content).update({name: value}))


def test_what_bends_the_training_or_the_step_matters():
    assert {rule.field for rule in RULES if rule.matters} == {*MATTERS.split(), *MATTERS_TOO}


def test_the_table_has_each_fact_once_with_a_reason_and_the_example_has_them(root):
    assert (
        len({rule.field for rule in RULES}) == len({(r.source, r.path, r.added) for r in RULES}) == len(RULES)
    )
    assert all(rule.why for rule in RULES) and {rule.task for rule in RULES} == {"", *TASKS}
    config = json.loads((root / "ddp" / "config.json").read_text())
    named = {rule.path[:2] for rule in RULES if rule.source == "config"}
    for group in ("config", "resolved"):
        assert {name for name in config[group] if (group, name) not in named} <= IMPLIED
    of_images = {rule for rule in RULES if rule.source == "config" and rule.task != "text"}
    absent = {
        r.field
        for r in of_images
        if r.path[-1] not in (config[r.path[0]].get("knobs", {}) | config[r.path[0]])
    }
    assert absent <= {*NOT_IN_EXAMPLES, "python", "torch", "deepspeed"}


def set_type(kind):
    return lambda run: edit_ranks(run, lambda rank: rank["dtypes"].update({kind: ["bfloat16"]}))


def set_version(run):
    edit(run / "config.json", lambda config: config["provenance"]["versions"].update(numpy="1.26.4"))


def set_variable(name):
    def change(run):
        edit(run / "config.json", lambda config: config["provenance"].update(environment={name: "1"}))

    return change


def set_at(place, **facts):
    return lambda run: (
        [put(run.parent, place, name, value, run.name) for name, value in facts.items()] and None
    )


def forget(place, name):
    return lambda run: edit(run / "config.json", lambda config: config[place].pop(name))


def slow_rank(run):
    edit(run / "ranks" / "rank1.json", lambda rank: rank.update(device_name="slower"))


@pytest.mark.parametrize(
    ("change", "field", "others", "value", "matters"),
    [
        (set_at("config", checkpoint_every=5), "checkpoint_every", 0, 5, False),
        (set_at("config", new_setting=2), "config.new_setting", "unknown", 2, True),
        (set_at("resolved", new_fact=2), "resolved.new_fact", "unknown", 2, True),
        (set_at("resolved", steps=7), "resolved.steps", 60, 7, True),
        (set_at("resolved", rungs=[1]), "rungs", "none", [1], True),
        (set_at("resolved", memory_forecast={"x": 1}), "resolved.memory_forecast", "not foreseen", {"x": 1}, False),
        (set_at("summary", skipped_steps=2), "skipped_steps", 0, 2, True),
        (set_at("summary", straggler="rank 1"), "straggler", "none", "rank 1", False),
        (forget("config", "clip_norm"), "clip_norm", 0.0, "unknown", True),
        (set_type("products"), "product dtypes", ["float32"], ["bfloat16"], True),
        (set_type("gathers"), "gather dtypes", ["float32"], ["bfloat16"], False),
        (slow_rank, "device of every rank", "Example CPU, 4 cores", ["Example CPU, 4 cores", "slower"], True),
        (lambda run: (run / "ranks" / "rank1.json").unlink(), "gradient dtypes", ["float32"], "unknown", True),
        (set_version, "numpy", "2.4.6", "1.26.4", True),
        (set_variable("NCCL_IB_DISABLE"), "NCCL_IB_DISABLE", "not set", "1", True),
        (set_at("summary", transport_in_node="SHM"), "transport within a node", "none recorded", "SHM", True),
        (set_at("summary", transport_between_nodes="x"), "transport between nodes", "none recorded", "x", True),
        (set_at("summary", gpudirect="no"), "GPUDirect RDMA", "none recorded", "no", True),
        (set_at("summary", transport_fell_back="x"), "transport fell back", "no", "x", True),
        (set_variable("NCCL_DEBUG"), "NCCL_DEBUG", "not set", "1", False),
        (set_at("resolved", knobs={"static_graph": True}), "knobs.static_graph", False, True, False),
        (set_at("resolved", knobs={}), "knobs.static_graph", False, "has none", False),
        (set_at("resolved", knobs=None), "knobs.static_graph", False, "not recorded", False),
    ],
)  # fmt: skip
def test_a_difference_in_one_run_is_found_and_judged(root, change, field, others, value, matters):
    change(root / "fsdp")
    found = report(root)
    entry = difference(found, field)
    assert entry["values"] == {"ddp": others, "fsdp": value, "zero2": others} and entry["matters"] is matters
    assert found["fairness"]["verdict"] == ("not comparable" if matters else "comparable")
    assert (field in found["fairness"]["reason"]) is matters
    if matters:
        silent = "unknown" in (others, value)
        assert (["ddp", "zero2"] in found["fairness"]["groups"]) is (others != "unknown")
        assert set(found["winners"].values()) == {None}
        assert ("fsdp" in entry["why"] or "ddp" in entry["why"]) is silent


def test_a_fall_back_of_all_runs_forbids_a_winner_too(root):
    put(root, "summary", "transport_fell_back", "Socket", "ddp", "fsdp", "zero2")
    found = report(root)
    assert found["fairness"]["verdict"] == "not comparable" and set(found["winners"].values()) == {None}


def test_runs_of_a_real_gpu_are_comparable_and_the_table_knows_every_fact_of_them():
    assert compare(load_runs(H200))["fairness"]["verdict"] == "comparable"
    named = {rule.path[:2] for rule in RULES if rule.source == "config"}
    configs = [json.loads(file.read_text()) for file in H200.glob("*/config.json")]
    facts = {
        (group, name) for config in configs for group in ("config", "resolved") for name in config[group]
    }
    assert len(configs) == 5 and {(g, n) for g, n in facts - named if n not in IMPLIED} == set()


def record(name, losses, first_norm, status="finished"):
    lines = [{"kind": "train", "step": step, "loss": loss} for step, loss in losses.items()]
    lines[0] |= {} if first_norm is None else {"grad_norm": first_norm}
    return RunRecord(name, Path(name), status, metrics=lines)


def test_the_differences_are_exact():
    first = {step: 2.0 for step in range(1, 41)}
    second = first | {3: 2.25, 20: 1.5, 21: 9.0}  # step 21 is behind the first 20
    third = {step: 2.0 for step in range(2, 11)}
    late = {step: 2.0 for step in (30, 31)}
    runs = [
        record("a", first, 1.0),
        record("b", second, 1.125),
        record("c", third, None),
        record("d", late, None),
    ]
    found = loss_agreement([*runs, record("e", first, 1.0, "failed")])
    assert (found["max_abs_loss_difference"], found["max_grad_norm_difference"]) == (0.5, 0.125)
    pairs = {"".join(pair["runs"]): list(pair.values())[1:] for pair in found["pairs"]}
    # steps that both have, largest difference, relative to its loss, to the mean in %, of the first norms
    assert pairs["ab"] == [20, 0.5, 0.25, pytest.approx(100 * 0.5 / ((20 * 2.0 + 39.75) / 40)), 0.125]
    assert pairs["ac"] == [9, 0.0, 0.0, 0.0, None]
    assert pairs["bc"] == [
        9,
        0.25,
        pytest.approx(1 / 9),
        pytest.approx(100 * 0.25 / ((9 * 2.0 + 18.25) / 18)),
        None,
    ]
    assert pairs["ad"] == [0, None, None, None, None] and len(pairs) == 6

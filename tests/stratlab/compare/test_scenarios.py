"""Small comparisons against what their reports said (tests/data/runs/scenarios.json.gz)."""

import pytest

from tests.stratlab.compare import scenarios as of
from tests.stratlab.compare.building import edit, judge
from tests.stratlab.compare.scenarios import SGD, THREE, WAYS, WEAK
from tests.stratlab.pinned import check_pinned, reduce

OF_ROWS = """run way step_time_ms_p50 step_time_ms_mean samples_per_s step_times_from measured_steps noise_ms
main_cause speedup speedup_vs_baseline speedup_vs_single scaling_efficiency_pct"""
LEFT_OUT = ("same", "sources", "sharding", "origin")
"""Equal in most scenarios; looked at in others."""


ONE, TWO, FOUR = ({"grad_accum_steps": 4 // n} for n in (4, 2, 1))
SOURCE = {"run": "demo/ddp", "step": 5, "manifest_sha256": "a"}
UNTESTED = {"validation_accuracy_pct": None}
RATES = {"a": {"lr": 0.001}, "b": {"lr": 0.01}, "c": {"lr": 0.1}}
CPU = {"device": "cpu"}

SCENARIOS = {
    # who may be compared
    "only the strategy differs": lambda r: judge(r, THREE, **CPU),
    "all were restarted": lambda r: of.changed(r, of.restart, **CPU),
    "a planted fault in all": lambda r: of.changed(r, of.put("config", fault="slow@5:1"), **CPU),
    "folders of one data set": lambda r: of.changed(r, of.put("config", dataset_path="/data/pets"), **CPU),
    "one image": lambda r: judge(r, ["ddp", "fsdp"], image="trainer:1", git_sha=None),
    "neither image nor commit": lambda r: judge(r, ["ddp", "fsdp"], image="", git_sha=None),
    "one run": lambda r: judge(r, ["ddp"]),
    "one run, failed": lambda r: judge(r, {"ddp": {"status": "failed"}}),
    "of two checkpoints": lambda r: of.changed(r, of.put("resolved", "fsdp", resumed_from=SOURCE)),
    "groups": lambda r: judge(r, {f"{s}-{n}": {"micro_batch_size": n} for s in ("ddp", "fsdp") for n in (4,
        8)} | {"zero2-odd": {"micro_batch_size": 4, "lr": 0.5}}),
    **{f"losses {pct} % apart in {precision}": lambda r, pct=pct, precision=precision: of.losses(r, {"ddp": 0.0,
        "fsdp": pct}, precision=precision) for precision, pcts in {"fp32": (0.008, 0.013), "bf16": (0.8, 1.3),
        "fp16": (0.8, 1.3), "bf16_native": (1.8, 2.4)}.items() for pct in pcts},
    **{f"repeats {pct} % apart, another strategy {other} %": lambda r, pct=pct, other=other: of.losses(r,
        {"ddp-1": 0.0, "ddp-2": pct, "fsdp": other}) for pct, other in ((0.03, 0.05), (0.03, 0.10), (1.0, 0.05))},
    "one of three learns otherwise": lambda r: of.losses(r, {"ddp": 0.0, "fsdp": 3.0, "zero2": 0.0}),
    "a chain of losses": lambda r: of.losses(r, {"ddp": 0.0, "fsdp": 0.007, "zero2": 0.014, "hsdp": 0.021}),
    "two seeds": lambda r: judge(r, {f"{name}-{seed}": {"seed": seed, "loss_shift": float(seed)} for seed in (0,
        1) for name in ("ddp", "fsdp")}),
    "tensor parallelism adds activations": of.layouts,
    "gradients are reduced in another type": lambda r: of.layouts(r, reduced="bf16"),
    # where they ran
    "side by side": lambda r: of.changed(r, of.beside()),
    "side by side on nodes unknown": lambda r: of.changed(r, of.beside(lambda r: of.set_nodes(r / "fsdp"))),
    "side by side on two nodes": lambda r: of.changed(r, of.beside(lambda r: of.set_nodes(r / "fsdp", "node-2"))),
    "beside one at work": lambda r: of.changed(r, of.beside(lost="unfinished")),
    "a lower power limit": lambda r: of.changed(r, of.slow_gpu(0, 1, power_limit_w=350.0)),
    "one GPU at a lower clock": lambda r: of.changed(r, of.slow_gpu(1, highest_clock_mhz=1200.0)),
    "one GPU is hot": lambda r: of.changed(r, of.slow_gpu(1, slowed_pct=12.4)),
    "no clocks": lambda r: of.changed(r, of.forget_gpus),
    "a busy CPU": lambda r: judge(r, ["ddp", "fsdp"], cpu_pressure_pct=60.0, **CPU, hosts=["n"]),
    # who leads
    **{f"a lead of {lead} % without repeats": lambda r, lead=lead: of.race(r, ddp=1000.0,
        fsdp=1000.0 + 10 * lead) for lead in (1.8, 2.2, -20)},
    "repeats apart": lambda r: of.race(r, ddp_1=1000.0, ddp_2=1001.0, fsdp_1=968.0, fsdp_2=969.0),
    "repeats overlap": lambda r: of.race(r, ddp_1=1000.0, ddp_2=1200.0, fsdp_1=900.0, fsdp_2=1050.0),
    "a number that one run lacks": lambda r: judge( r, {"ddp": {}, "fsdp": {"analysis": False},
        "zero2": {"status": "failed"}}),
    **{f"a limit of {gib} GiB": lambda r, gib=gib: of.limit(r, gib) for gib in (8.0, 7.9, 6.0, 2.0)},
    "a limit on a CPU": lambda r: of.limit(r, 0.002, "cpu"),
    "a warm-up in one run": lambda r: of.slow_down(r, range(1, 19), 50.0, ddp=6400.0, fsdp=6400.0),
    "four steps": lambda r: of.changed(r, of.shorten),
    # how they scale
    "strong": lambda r: of.scale(r, *((f"ddp-{n}", n, v, {"grad_accum_steps": 16 // n}) for n, v in ((2, 1000.0), (4,
        1800.0), (8, 2800.0)))),
    "weak": lambda r: of.grow(r, WEAK, {"grad_accum_steps": 1}),
    "two series": lambda r: of.scale(r, ("ddp-2", 2, 1e3, FOUR), ("ddp-4", 4, 1.5e3, TWO), ("fsdp-2", 2, 800.0,
        FOUR), ("fsdp-4", 4, 1440.0, TWO)),
    "repeats of a size": lambda r: of.scale( r, ("ddp-2", 2, 800.0, {}), ("ddp-4", 4, 1600.0, {}), ("ddp-again", 4,
        1700.0, {"seed": 1}), ("ddp-more", 4, 1500.0, {"seed": 2}), **CPU),
    "from one process": lambda r: of.scale( r, ("single", 1, 500.0, TWO), ("ddp-2", 2, 900.0, ONE), ("fsdp-2", 2,
        800.0, ONE)),
    "from one process, weakly": lambda r: of.scale( r, ("single", 1, 500.0, {"global_batch_size": 32,
        "grad_accum_steps": 1}), ("ddp", 2, 900.0, {"grad_accum_steps": 1, "steps": 30,
        "data_order_sha256": "other"})),
    "on one device": lambda r: of.scale(r, *((f"{s}-1", 1, 500.0, TWO) for s in ("single", "ddp", "fsdp"))),
    "sizes whose losses differ": lambda r: of.scale(r, ("ddp-a", 2, 1e3, {}), ("ddp-b", 4, 1.5e3,
        {"loss_shift": 1.0})),
    "three folders": of.gather,
    # why
    "against one of another seed": lambda r: judge( r, {"ddp": {}, "fsdp": {}, "ddp-again": {"seed": 1,
        "samples_per_s": 9000.0}}, {"baseline": "ddp-again"}),
    "not comparable, and explained": lambda r: judge( r, {"ddp": {}, "fsdp": {}, "single": {},
        "zero2": {"data_sha256": None}}),
    "an analysis of an older version": lambda r: of.changed(r, of.report_analysis(parts=None)),
    "parts that are no numbers": lambda r: of.changed(r, of.report_analysis(parts=[{"part": "compute", "ms": None}])),
    "parts that do not sum": lambda r: of.changed(r, of.report_analysis(parts=[{"part": "compute", "ms": 3.0}])),
    "an analysis of CPU traces": lambda r: of.changed(r, of.report_analysis(source="cpu")),
    # searches
    "a search": lambda r: of.search(r, of.points((90.0, 90.2), (94.0, 94.2), (80.0, 80.2)), "lr"),
    "within the noise of seeds": lambda r: of.search(r, of.points((93.0, 95.0), (94.0, 96.0), (80.0, 82.0)), "lr"),
    "10,000 samples": lambda r: of.search(r, of.points((90.0,), (94.0,)), "lr"),
    "strategies of one seed apart": lambda r: of.search(r, of.teams((0,), 1.25), "lr"),
    "strategies of two seeds apart": lambda r: of.search(r, of.teams((0, 1), 1.5), "lr"),
    "optimizers": lambda r: of.search(r, {"one": {}, "other": SGD | {"beta1": 0.5}}, "optimizer"),
    "seeds in a search": lambda r: of.search( r, {"one": {"seed": 0}, "other": {"seed": 1,
        "data_order_sha256": "b"}}, "lr"),
    "depths": lambda r: of.follow(r, "model_layers", (2, 3), *({ **dict.fromkeys(("parameters",
        "trainable_parameters", "flops_per_sample"), 1000 * i + 1), "initial_weights_sha256": str(i)} for i in (0,
        1))),
    "momentum does not follow": lambda r: of.search( r, {"a": {}, "b": SGD | {"momentum": 0.9},
        "odd": SGD | {"momentum": 0.5, "lr": 0.1}}, "optimizer", "lr"),
    "a point whose strategies disagree": lambda r: of.search(r, { f"{s}-{lr}": {"strategy": s, "lr": lr,
        "bent": 0.3 * ((s, lr) in (("zero2", 0.01), ("fsdp", 0.1)))} for lr, names in ((0.001, THREE[:1]), (0.01,
        THREE), (0.1, THREE[:2])) for s in names}, "lr"),
    "batches": lambda r: of.search(r, {"a": {}, "b": {"global_batch_size": 128, "grad_accum_steps": 2,
        "data_order_sha256": "other", "bent": 0.1}}, "global_batch_size"),
    "ranked by the loss": lambda r: of.search( r, {name: RATES[name] | {"validation_loss": loss} for name,
        loss in zip("abc", (0.5, 0.4, 0.402), strict=True)}, "lr", test_accuracy_pct=None, **UNTESTED),
    "ranked by nothing": lambda r: of.search(r, RATES, "lr", test_accuracy_pct=None, validation_loss=None,
        **UNTESTED),
    # ways to carry out one training
    "ways": lambda r: of.ways(r, *WAYS, "lr"),
    "ways whose losses differ": lambda r: of.ways(r, *WAYS, loss_shift=0.1),
    "ways and another difference": lambda r: of.ways(r, *WAYS, lr=0.5),
    "ways and seeds": lambda r: judge(r, { f"ddp-{seed}-{n}": {"seed": seed, "micro_batch_size": n,
        "loss_shift": float(seed)} for seed in (0, 1) for n in (8, 16)}, {"varied": ["micro_batch_size"]}),
    "a way that is not known": lambda r: of.changed(r, lambda r: edit( r / "ddp-b/config.json",
        lambda config: config["config"].pop("compile")), ["ddp-a", "ddp-b"], compile=True),
    "places, asked for": lambda r: of.changed( r, of.reside("resolved", "config"), ["ddp-device", "ddp-host"],
        {"varied": ["data_residence"]}),
    # tuned runs; the seed, 0 of the example runs, plays a knob
    "tuned": lambda r: of.tune(r, {"seed": 0}, {"seed": 0}),
    "tuned beside untuned": lambda r: of.tune(r, {"seed": 77}, {}, "no knob was given"),
    "tuned to other knobs": lambda r: of.tune(r, {"seed": 77}, {"seed": 77}),
    "with a knob that was turned down": lambda r: of.tune(r, {"seed": 0}, {}),
    "repeats with schedules of no pipeline": lambda r: judge(r, {"ddp-1": {}, "ddp-2": {"seed": 1,
        "pp_schedule": "gpipe"}, "fsdp": {}}),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_comparison_says_what_it_said(name, tmp_path):
    report = SCENARIOS[name](tmp_path / "demo")
    names = {row["run"] for row in report["runs"]}
    rows = [{key: row[key] for key in OF_ROWS.split()} for row in report["runs"]]
    fairness = {key: value for key, value in report["fairness"].items() if key not in LEFT_OUT}
    parts = {key: value for key, value in report.items() if key not in LEFT_OUT}
    check_pinned("runs/scenarios.json.gz", name, reduce(parts | {"runs": rows, "fairness": fairness}, names))

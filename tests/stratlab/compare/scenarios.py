"""Small comparisons, each made to show one thing. What their reports say is pinned: test_scenarios.py."""

import json

from stratlab.compare.comparison import compare
from stratlab.compare.run_sources import keep_tuning, load_comparisons, load_runs, read_tuning
from tests.stratlab.compare.building import build, edit, edit_ranks, judge, resolve
from tests.stratlab.example_run import build_run_dir, write_lines
from tests.stratlab.example_text import LAYOUTS, build_text_run

THREE = ("ddp", "fsdp", "zero2")
WEAK = {"global_batch_size": 32, "grad_accum_steps": 1, "steps": 30, "data_order_sha256": "other"}
"""Half the batch, twice the steps: beside it, four ranks scale weakly."""
SGD = {"optimizer": "sgd"}


def put(place, *runs, **facts):
    """Into a part of config.json; into the settings themselves where `place` is config."""
    return lambda root: [
        edit(root / run / "config.json", lambda content: content[place].update(facts))
        for run in runs or THREE
    ]


def changed(root, change, runs=THREE, asked=None, **common):
    build(root, runs, **common)
    change(root)
    return judge(root, asked=asked)


def losses(root, percents, **changes):
    """Runs whose losses are so many percent of 1.6, nearly their mean, apart."""
    return judge(root, {name: {"loss_shift": 0.016 * pct} for name, pct in percents.items()}, **changes)


def race(root, **speeds):
    return judge(root, {name.replace("_", "-"): {"samples_per_s": speed} for name, speed in speeds.items()})


def scale(root, *runs, **common):
    return judge(
        root,
        {
            name: {"world_size": n, "processes_per_node": n, "samples_per_s": v, **more}
            for name, n, v, more in runs
        },
        **common,
    )


def grow(root, small, large):
    return scale(root, ("ddp-2", 2, 1000.0, small), ("ddp-4", 4, 1900.0, large))


def restart(root):
    for run in THREE:
        path = root / run / "attempts.jsonl"
        path.write_text(path.read_text().replace('"exit_code": 0', '"exit_code": 137') + path.read_text())


def move(root, **begun):
    for name, at in begun.items():
        for file in ("attempts.jsonl", "metrics.jsonl"):
            lines = [json.loads(line) for line in (root / name / file).read_text().splitlines()]
            shift = at - lines[0]["t"] + (0.012 if file == "metrics.jsonl" else 0)
            write_lines(root / name / file, [line | {"t": line["t"] + shift} for line in lines])


def set_nodes(run, *nodes):
    edit_ranks(run, lambda rank: rank.update(node=nodes[0] if nodes else rank["node"]))
    lines = [json.loads(line) for line in (run / "attempts.jsonl").read_text().splitlines()]
    write_lines(run / "attempts.jsonl", [line | {"nodes": nodes} for line in lines])


def beside(*change, lost=""):
    """ddp and fsdp (or `lost`, which never ended well) at one time on one node, and then the change."""

    def make(root):
        if lost:
            build_run_dir(root, "lost", "hsdp", device="cuda", hosts=["n"], status=lost)
        move(root, fsdp=2e9, **{"lost" if lost else "ddp": 2e9})
        for each in change:
            each(root)

    return make


def slow_gpu(*ranks, **facts):
    return lambda root: [
        edit(root / f"fsdp/ranks/rank{rank}.json", lambda content: content["gpu"].update(facts))
        for rank in ranks
    ]


def forget_gpus(root):
    for run in THREE:
        edit_ranks(root / run, lambda rank: rank.update(gpu=dict.fromkeys(rank["gpu"])))


def search(root, runs, *varied, **common):
    """Runs of ddp on a CPU, 10,000 validation samples; each rate and each seed has losses of its own."""
    for name, given in runs.items():
        changes = {"strategy": "ddp", "lr": 0.001, "validation_samples": 10_000, **common, **given}
        optimizer = changes.pop("optimizer", "adamw")  # also a kind of what a rank holds
        shift = changes.pop("bent", 0.0) + changes["lr"] + changes.get("seed", 0) + 2.0 * (optimizer == "sgd")
        judge(root, {name: {"device": "cpu", "loss_shift": shift + changes.get("momentum", 0), **changes}})
        put("config", name, optimizer=optimizer)(root)
        kept = ["float32"] if optimizer == "adamw" or changes.get("momentum") else []
        edit_ranks(root / name, lambda rank, kept=kept: rank["dtypes"].update(optimizer=kept))
    return compare(load_runs(root), varied=varied)


def points(*accuracies, **odd):
    """One point for each rate, one run for each seed; `odd`: changes of the last rate's."""
    runs = {
        f"{name}{seed}": {"lr": lr, "seed": seed, "validation_accuracy_pct": value}
        for (name, lr), values in zip((("a", 0.001), ("b", 0.01), ("c", 0.1)), accuracies, strict=False)
        for seed, value in enumerate(values)
    }
    return runs | ({"c0": runs["c0"] | odd} if odd else {})


def teams(seeds, shift):
    """Seeds spread by 0.1 %, but two strategies of one seed by more."""
    return {
        f"{name}-{lr}-{seed}": {
            "strategy": name, "lr": lr, "seed": seed, "validation_accuracy_pct": base + 0.1 * seed + sign * shift,
        }
        for lr, base in ((0.001, 90.0), (0.01, 92.0)) for seed in seeds for name, sign in (("ddp", 1), ("fsdp", -1))
    }  # fmt: skip


def follow(root, varied, values, *facts):
    search(root, {str(i): {varied: value, "bent": float(i)} for i, value in enumerate(values)})
    for i, told in enumerate(facts):
        resolve(root / str(i), **told)
    return compare(load_runs(root), varied=[varied])


WAYS = ["micro_batch_size", "activation_checkpointing"]


def ways(root, *varied, change=None, **larger):
    """One strategy with two micro-batches, and another one with the larger of them."""
    runs = {
        "ddp-8": {"micro_batch_size": 8, "samples_per_s": 1000.0},
        "ddp-16": {"micro_batch_size": 16, "samples_per_s": 1300.0, **larger},
        "fsdp-16": {"micro_batch_size": 16, "samples_per_s": 1100.0},
    }
    return changed(root, change or (lambda _: None), runs, {"varied": varied} if varied else None)


def reside(*keys):
    return lambda root: [
        put(key, run, data_residence=run.partition("-")[2])(root)
        for run in ("ddp-device", "ddp-host")
        for key in keys
    ]


def tune(root, tried, chosen, why_not=""):
    """ddp tried this besides its defaults and one that ran out of memory; fsdp has no knob."""
    build(root, ["ddp", "fsdp"])
    values = (({}, 100.0, 0.0, ""), (tried, 110.0, 10.0, ""), ({"a": 9}, None, None, "OOM!"))
    candidates = [
        {"knobs": knobs, "runs": ["r"], "values": [value] if value else [], "value": value, "why": why}
        | {"lead_pct": lead, "noise_pct": 2.0, "measured_noise": False}
        for knobs, value, lead, why in values
    ]
    ddp = {"tried": candidates, "chosen": chosen, "why_not": "", "not_tried": [{"static_graph": True}]}
    searches = [
        {"strategy": name, "point": {"strategy": name}, "runs": [name], **more}
        for name, more in (("ddp", ddp), ("fsdp", {"tried": [], "chosen": {}, "why_not": why_not}))
    ]
    origin = dict.fromkeys(("hardware", "backend", "world_size", "nodes", "measured_steps"), "x") | {
        "device": "cpu"
    }
    metric = {"name": "throughput", "key": "samples_per_s", "unit": "samples per s", "highest": True}
    counts = {"tuning": "demo-tuning", "steps": 30, "repeats": 1, "candidates": 3}
    keep_tuning(root, {"metric": metric, "origin": origin, "searches": searches, **counts})
    return compare(load_runs(root), tuning=read_tuning(root))


def layouts(root, reduced="fp32", shift=0.0):
    """As the trainer records them in bf16: tensor parallelism adds activations in the products' type."""
    for name in ("llm-1d", "llm-2d", "llm-3d", "llm-4d"):
        is_split = LAYOUTS[name].axes.get("tp", 1) > 1
        folder = build_text_run(root, name, LAYOUTS[name], loss_shift=shift * is_split)
        kinds = {"products": ["bfloat16"], "reductions": ["bfloat16", "float32"] if is_split else ["float32"]}
        edit_ranks(folder, lambda rank, kinds=kinds: rank["dtypes"].update(kinds))
        resolve(folder, precision="bf16", knobs={"reduce_dtype": reduced if is_split else "fp32"})
    return judge(root)


def limit(root, gib, device="cuda"):
    """With a limit of the device's memory; on a CPU there is no peak."""
    numbers = {"ddp": (1000.0, 8.0), "zero2": (950.0, 5.0), "fsdp": (800.0, 3.0)}
    peaks = {
        name: {"peak_memory_gib": peak} if device == "cuda" else {} for name, (_, peak) in numbers.items()
    }
    runs = {name: {"samples_per_s": speed, **peaks[name]} for name, (speed, _) in numbers.items()}
    return judge(root, runs, {"memory_limit_gib": gib}, device=device)


def slow_down(root, steps, ms, **speeds):
    build(root, {name: {"samples_per_s": speed} for name, speed in speeds.items()})
    lines = [json.loads(line) for line in (root / "fsdp/metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line |= (
            {"step_time_ms": line["step_time_ms"] + ms} if line["step"] in steps and "loss" in line else {}
        )
    write_lines(root / "fsdp/metrics.jsonl", lines)
    return judge(root)


def shorten(root):
    lines = [json.loads(line) for line in (root / "fsdp/metrics.jsonl").read_text().splitlines()]
    write_lines(root / "fsdp/metrics.jsonl", [line for line in lines if line["step"] <= 4])
    edit(
        root / "fsdp/summary.json",
        lambda found: found.update(steps=4, step_time_ms_p50=None, measured_steps=0),
    )


def gather(root):
    sizes = ((2, 100.0), (4, 190.0), (8, 320.0))
    for n, speed in sizes:
        scale(root / f"of-{n}", (f"ddp-{n}", n, speed, {"grad_accum_steps": 8 // n}))
    return compare(load_comparisons([root / f"of-{n}" for n, _ in sizes]))


def report_analysis(**change):
    return lambda root: edit(root / "fsdp/analysis/report.json", lambda content: content.update(change))

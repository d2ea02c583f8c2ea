"""The numbers of an example run: metrics, summary, evaluation, traces, analysis. Used by example_run.py."""

import hashlib
import json
import math
from pathlib import Path

PHASES = ("data", "forward", "backward", "optimizer")
LABELS = (  # name, start and length in us
    ("## Training Step {} ##", 0, 11_300),
    ("## Data Loading ##", 0, 200),
    ("## Forward Pass ##", 200, 4_000),
    ("## Backward Pass ##", 4_200, 6_000),
    ("## Optimizer Step ##", 10_200, 1_000),
)

THREE = Path(__file__).parents[1] / "data" / "runs" / "comparison_of_3" / "demo"
"""Runs as files, of which everything is taken that does not follow from the arguments."""
TEMPLATE = json.loads((THREE / "ddp" / "summary.json").read_text())
OF_PEAK = ("alloc_retries", "forecast_memory_error_pct")
OF_GPU = (
    *("train_energy_wh", "train_power_w", "gpu_utilisation_pct", "gpu_temperature_c"),
    "peak_flops_per_device",
)
# exposed communication of a strategy by collective, shares
TALK = {
    "ddp": {"all_reduce": 1.0},
    "fsdp": {"all_gather": 0.7, "reduce_scatter": 0.3},
    "zero2": {"reduce_scatter": 0.6, "all_gather": 0.4},
}


def build_metrics(config, pace, loss_shift, begun, step_ms=None):
    """The lines of metrics.jsonl; `pace` scales the step times. `step_ms`: of every step, instead.

    `begun`: seconds since 1970."""
    settings, steps = config["config"], config["resolved"]["steps"]
    lines = []
    for step in range(1, steps + 1):
        stamp = {"t": begun + step * 0.012, "attempt": 1, "step": step}
        loss = 2.3 * math.exp(-step / 25) + 0.05 + 0.01 * math.sin(5 * step)
        wobble = pace * (1 + 0.04 * math.sin(3 * step))
        passes = (4.0 * wobble, 6.0 * wobble)
        if step_ms is not None:
            passes = (0.4 * (step_ms - 1.3), 0.6 * (step_ms - 1.3))
        times = dict(zip((f"{phase}_ms" for phase in PHASES), (0.2, *passes, 1.0), strict=True))
        train = {
            "kind": "train",
            "loss": loss + loss_shift,
            "grad_norm": 1.2 / step + loss_shift,
            "skipped": 0,
        }
        train |= {"lr": settings["lr"], "samples": settings["global_batch_size"]}
        train["profiled"] = 0 <= step - settings["profile_first_step"] < settings["profile_steps"]
        lines.append({**stamp, **train, **times, "step_time_ms": sum(times.values()) + 0.1})
        if step % 20 == 0 or step == steps:
            accuracy = 97.0 - 60 * math.exp(-step / 15)
            found = {"validation_loss": loss + 0.02, "validation_accuracy_pct": accuracy}
            lines.append({**stamp, "kind": "eval", **found})
            lines.append({**stamp, "kind": "system", "peak_host_memory_gib": 0.8})
    return lines


def build_summary(config, ranks, metrics):
    settings, resolved = config["config"], config["resolved"]
    train = [line for line in metrics if line["kind"] == "train"]
    validation = [line for line in metrics if line["kind"] == "eval"]
    measured = [line for line in train if line["step"] > 5 and not line["profiled"]]
    times = {name: sorted(line[name] for line in measured) for name in train[0] if name.endswith("_ms")}
    p50 = {f"{name}_p50": ordered[len(ordered) // 2] for name, ordered in times.items()}
    held = {kind: max(r["state_memory_gib"][kind] for r in ranks) for kind in ranks[0]["state_memory_gib"]}
    on_gpu, peak = resolved["device_type"] == "cuda", ranks[0]["peak_memory_gib"]
    samples_per_s = 1e3 * settings["global_batch_size"] / p50["step_time_ms_p50"]
    asked = ("run", "comparison", "strategy", "model", "dataset", "seed", "precision")
    found = ("backend", "device_type", "device_name", "world_size", "nodes", "steps", "grad_accum_steps")
    flops = TEMPLATE["peak_flops_per_device"]
    return {
        **{name: value if peak or name not in OF_PEAK else None for name, value in TEMPLATE.items()},
        **({} if on_gpu else dict.fromkeys(OF_GPU)),
        **{name: settings[name] for name in (*asked, "global_batch_size", "micro_batch_size")},
        **{name: resolved[name] for name in (*found, "parameters", "flops_per_sample")},
        **resolved["axes"],
        "train_loss": train[-1]["loss"],
        "validation_loss": validation[-1]["validation_loss"],
        "validation_accuracy_pct": validation[-1]["validation_accuracy_pct"],
        "test_loss": validation[-1]["validation_loss"] + 0.01,
        "measured_steps": len(measured),
        **p50,
        "step_time_ms_p95": times["step_time_ms"][int(0.95 * (len(measured) - 1))],
        "samples_per_s": samples_per_s,
        "peak_memory_gib": peak,
        "peak_reserved_gib": 1.25 * peak if peak else None,
        **{f"{kind.removesuffix('s')}_memory_gib": size for kind, size in held.items()},
        "mfu_pct": 100 * samples_per_s * resolved["flops_per_sample"] / (flops * len(ranks))
        if on_gpu
        else None,
        "train_time_s": sum(line["step_time_ms"] for line in train) / 1e3,
        "data_order_sha256": ranks[0]["data_order_sha256"],
        "initial_weights_sha256": ranks[0]["initial_weights_sha256"],
        **{f"dtype_{kind}": "+".join(types) for kind, types in ranks[0]["dtypes"].items()},
    }


def build_evaluation(summary):
    told = json.loads((THREE / "ddp" / "evaluation.json").read_text())
    return {**told, "loss": summary["test_loss"], "accuracy_pct": summary["test_accuracy_pct"]}


def build_analysis(summary, world_size, pace):
    """What the comparison reads of analysis/report.json. Every strategy computes as long as ddp; the rest of its step
    is exposed communication."""
    on_gpu = summary["device_type"] == "cuda"
    step_ms = summary["step_time_ms_p50"]
    plain_ms = step_ms / pace  # of ddp
    talk = TALK.get(summary["strategy"], {}) if world_size > 1 else {}
    shares = {"copy": 0.01, "data": 0.02, "host": 0.03, "other_idle": 0.01}
    ms = {part: share * plain_ms for part, share in shares.items()}
    ms |= {"compute": 0.85 * plain_ms if talk else step_ms - sum(ms.values())}
    exposed_ms = step_ms - sum(ms.values())
    exposed = {name: share * exposed_ms for name, share in talk.items()}
    entries = [{"part": part, "collective": None, "axis": None, "ms": value} for part, value in ms.items()]
    entries += [{"part": "comm", "collective": name, "axis": None, "ms": ms} for name, ms in exposed.items()]
    hidden_ms = 0.4 if talk else 0.0
    told_ms = {"compute": ms["compute"], "copy_exposed": ms["copy"], "straggler": 0.0}
    told_ms |= {"comm": exposed_ms + hidden_ms if talk else 0.0, "comm_exposed": exposed_ms if talk else 0.0}
    told_ms |= {"data_wait": ms["data"], "host_wait": ms["host"]}
    told_ms["idle"] = ms["data"] + ms["host"] + ms["other_idle"]
    row = {f"{name}_pct": 100 * value / step_ms for name, value in told_ms.items()}
    row |= {f"{phase}_ms": summary[f"{phase}_ms_p50"] for phase in PHASES}
    row["comm_overlap_pct"] = 100 * hidden_ms / (exposed_ms + hidden_ms) if talk else None
    row["step_ms"] = step_ms
    hta = {"status": "ok", "reason": "", "seconds": 0.1, "tables": []}
    if not on_gpu:
        hta |= {"status": "unsupported", "reason": "needs GPU kernels, and these are CPU traces"}
    return {
        "schema_version": 2,
        "source": "gpu" if on_gpu else "cpu",
        "mean": {"ranks": world_size, "steps": 3, **row, "slowest_rank": None, "kernels_per_step": 900.0},
        "parts": entries,
        "ranks": [{"rank": rank, "steps": 3, **row} for rank in range(world_size)],
        "collectives": [
            {"rank": rank, "name": name, "collective": name, "axis": None, "bytes": 3_000_000, "wait_ms": 0.0}
            | {"total_ms": 3 * (value + hidden_ms * talk[name]), "exposed_ms": 3 * value}
            for rank in range(world_size)
            for name, value in exposed.items()
        ],
        "quality": [],
        "hta": [{"analysis": name, **hta} for name in ("temporal_breakdown", "idle_time")],
        "phases_present": {str(rank): list(PHASES) for rank in range(world_size)},
    }


def write_traces(folder, config, world_size):
    """Writes traces that hold the labels of steps and phases and nothing below; returns the manifest."""
    first, steps = config["config"]["profile_first_step"], config["config"]["profile_steps"]
    files = []
    for rank in range(world_size):
        label = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1}
        events = [
            {**label, "name": name.format(first + k), "ts": 12_000.0 * k + start, "dur": length}
            for k in range(steps)
            for name, start, length in LABELS
        ]
        place = {"rank": rank, "world_size": world_size}
        content = json.dumps({"schemaVersion": 1, "distributedInfo": place, "traceEvents": events}).encode()
        name = f"rank{rank}_trace.json"
        (folder / name).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        files.append({"rank": rank, "file": name, "bytes": len(content), "sha256": digest})
    return {"schema_version": 1, "complete": True, "first_step": first, "steps": steps, "files": files}

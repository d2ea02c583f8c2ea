"""A complete, plausible run directory without a training: fields as docs/formats.md gives them.

    build_run_dir(tmp_path / "demo", "ddp", "ddp")
    build_run_dir(tmp_path / "demo", "fsdp", "fsdp", seed=1, device="cuda", status="failed")

Every number follows from the arguments, so two calls write equal files.
"""

import json
import zlib

from tests.stratlab import example_numbers as numbers
from tests.stratlab.example_numbers import THREE

GIB = 2**30
CPU = {"device_type": "cpu", "device_name": "Example CPU, 4 cores", "backend": "gloo"}
# share of parameters, gradients and optimizer state that each of two ranks holds; step time relative to ddp
HELD = {"single": (1, 1, 1), "ddp": (1, 1, 1), "fsdp": (0.5, 0.5, 0.5), "zero2": (1, 0.5, 0.5)}
PACE = {"single": 1.7, "ddp": 1.0, "fsdp": 1.25, "zero2": 1.1}
ENDINGS = {"finished": (0, "done"), "failed": (10, "out of memory"), "stopped": (143, "stopped from outside")}


def build_run_dir(
    root, run, strategy, *, device="cpu", status="finished", analysis=True, loss_shift=0.0, **changes
):
    """Writes `<root>/<run>` and returns it.

    Args:
        root: folder of the comparison; its name is the comparison's.
        device: cpu (gloo) or cuda (nccl).
        status: finished; failed (out of memory half way); unfinished (still at work half way).
        analysis: with analysis/report.json, as `stratlab analyze` leaves it.
        loss_shift: added to every training loss and gradient norm.
        changes: value of a setting, a resolved fact, a version, a fact of a rank or a number of the summary,
            by its name, set wherever that name occurs. samples_per_s makes all steps equally long.

    Raises:
        TypeError: a change names nothing that a run directory holds.
    """
    config = _config(root.name, run, strategy, device)
    _change(config, changes)
    ranks = [_rank(i, config) for i in range(config["resolved"]["world_size"])]
    _change(ranks, changes)
    pace, speed = PACE.get(strategy, 1.0), changes.get("samples_per_s")
    step_ms = 1e3 * config["config"]["global_batch_size"] / speed if speed else None
    begun = 1.7e9 + 100 * (zlib.crc32(run.encode()) % 1_000_000)  # one run after the other, in some order
    metrics = numbers.build_metrics(config, pace, loss_shift, begun, step_ms)
    summary = numbers.build_summary(config, ranks, metrics)
    unused = changes.keys() - _names(config) - _names(ranks) - summary.keys()
    if unused:
        raise TypeError(f"no field of a run directory: {', '.join(sorted(unused))}")
    summary |= {name: value for name, value in changes.items() if name in summary}

    folder = root / run
    for name in ("ranks", "traces", "analysis"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    nodes = sorted({str(rank["node"]) for rank in ranks})
    write_lines(folder / "attempts.jsonl", _attempts(status, begun, nodes))
    write_lines(folder / "metrics.jsonl", metrics if status == "finished" else metrics[: len(metrics) // 2])
    server = {"tracking_uri": "http://mlflow:5000", "experiment_id": "1", "run_id": f"id-{run}"}
    write_json(folder / "mlflow.json", server)
    for i in range(len(ranks)):
        (folder / f"ranks/rank{i}.log").write_text(f"{run}: rank {i} has started\n")
    if status != "finished":
        return folder
    for i, rank in enumerate(ranks):
        write_json(folder / f"ranks/rank{i}.json", rank)
    write_json(folder / "summary.json", summary)
    write_json(folder / "evaluation.json", numbers.build_evaluation(summary))
    if config["config"]["profile_steps"]:
        write_json(
            folder / "traces/manifest.json", numbers.write_traces(folder / "traces", config, len(ranks))
        )
    if analysis:
        write_json(folder / "analysis/report.json", numbers.build_analysis(summary, len(ranks), pace))
    return folder


def write_json(path, content):
    path.write_text(json.dumps(content, indent=1) + "\n")


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _config(comparison, run, strategy, device):
    config = json.loads((THREE / "ddp" / "config.json").read_text())
    world_size = 1 if strategy == "single" else 2
    shard = world_size if strategy in ("fsdp", "zero2") else 1
    known = {"run": run, "comparison": comparison, "strategy": strategy}
    _change(config, known | {"hosts": [f"{run}-worker-0"]})
    axes = {"dp_replicate": world_size // shard, "dp_shard": shard}
    config["resolved"] |= {"world_size": world_size, "processes_per_node": world_size, "axes": axes}
    config["resolved"]["grad_accum_steps"] = 2 // world_size
    if device == "cpu":
        config["resolved"] |= CPU
    return config


def _rank(rank, config):
    resolved, kinds = config["resolved"], ("parameters", "gradients", "optimizer")
    held = HELD.get(config["config"]["strategy"], (1, 1, 1))
    words = (resolved["parameters"], resolved["parameters"], 2 * resolved["parameters"])
    told = json.loads((THREE / "ddp" / "ranks" / "rank0.json").read_text())
    on_gpu = resolved["device_type"] == "cuda"
    told |= {name: resolved[name] for name in ("device_type", "device_name", "initial_weights_sha256")}
    told |= {"rank": rank, "local_rank": rank, "host": config["provenance"]["hosts"][0]}
    told |= {} if on_gpu else {"gpu": None}
    told["peak_memory_gib"] = 1.5 * held[2] + 0.3 if on_gpu else None
    told["state_memory_gib"] = {k: 4 * n * part / GIB for k, n, part in zip(kinds, words, held, strict=True)}
    return told | {"samples_seen": 64 * resolved["steps"] // resolved["world_size"]}


def _attempts(status, begun, nodes):
    line = {"t": begun, "attempt": 1, "launcher": "4f"}
    lines = [{**line, "event": "started", "from_step": 0, "host": "worker-0", "nodes": nodes}]
    if status in ENDINGS:
        code, reason = ENDINGS[status]
        lines.append({**line, "t": begun + 60, "event": "ended", "exit_code": code, "reason": reason})
    return lines


def _change(content, changes):
    """Sets each changed name wherever it occurs in nested objects."""
    if isinstance(content, list):
        for value in content:
            _change(value, changes)
    elif isinstance(content, dict):
        for name, value in content.items():
            if name in changes:
                content[name] = changes[name]
            else:
                _change(value, changes)


def _names(content):
    if isinstance(content, list):
        return set().union(*map(_names, content))
    return set(content).union(*map(_names, content.values())) if isinstance(content, dict) else set()

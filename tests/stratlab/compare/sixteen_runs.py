"""Sixteen runs out of the three of tests/data/runs/comparison_of_3, by other settings, seeds, sizes and endings."""

import json
import shutil

from tests.stratlab.example_numbers import THREE

SECOND_SEED = {"seed": 1, "initial_weights_sha256": "b1" * 32, "data_order_sha256": "c1" * 32}

# name -> (run that it is made of, values by name, step time relative to it, what is added to its losses)
RUNS = {
    "ddp-a": ("ddp", {}, 1.0, 0.0),
    "ddp-b": ("ddp", SECOND_SEED, 1.01, 1.0),
    "fsdp-a": ("fsdp", {}, 1.0, 0.0),
    "fsdp-b": ("fsdp", SECOND_SEED, 0.985, 1.0),
    "zero2-a": ("zero2", {}, 1.0, 1e-7),
    "zero2-b": ("zero2", SECOND_SEED, 1.004, 1.0),
    "ddp-4": ("ddp", {"world_size": 4, "processes_per_node": 4, "micro_batch_size": 16}, 0.6, 0.0),
    "fsdp-4": ("fsdp", {"world_size": 4, "processes_per_node": 4, "micro_batch_size": 16}, 0.7, 0.0),
    "single": (
        "ddp",
        {"strategy": "single", "world_size": 1, "processes_per_node": 1, "grad_accum_steps": 2},
        1.8,
        0.0,
    ),
    "ddp-micro": ("ddp", {"micro_batch_size": 16, "grad_accum_steps": 2}, 1.2, 0.0),
    "ddp-lr": ("ddp", {"lr": 0.01, "validation_accuracy_pct": 97.0}, 1.0, 0.1),
    "fsdp-bf16": ("fsdp", {"precision": "bf16", "products": ["bfloat16"]}, 0.6, 0.001),
    "zero2-bent": ("zero2", {}, 0.99, 0.3),
    "ddp-restarted": ("ddp", {}, 1.0, 0.0),
    "fsdp-failed": ("fsdp", {"seed": 7}, 1.0, 0.0),
    "zero2-incomplete": ("zero2", {"torch": "2.12.1"}, 1.0, 0.0),
}


def build_sixteen(root):
    """Writes them below `root`, and returns it."""
    for number, (name, (source, values, pace, shift)) in enumerate(RUNS.items()):
        _build(THREE / source, root / name, {"run": name, "comparison": root.name, **values}, pace, shift)
        _edit_lines(root / name / "metrics.jsonl", lambda line, n=number: line | {"t": line["t"] + 1e6 * n})
        _edit_lines(root / name / "attempts.jsonl", lambda line, n=number: line | {"t": line["t"] + 1e6 * n})
    attempts = (root / "ddp-restarted" / "attempts.jsonl").read_text()
    again = attempts.replace('"attempt": 1', '"attempt": 2')
    lost = attempts.replace('"exit_code": 0', '"exit_code": 137')
    (root / "ddp-restarted" / "attempts.jsonl").write_text(lost + again)
    failed = root / "fsdp-failed"
    _edit_lines(
        failed / "attempts.jsonl", lambda line: line | ({"exit_code": 10} if "reason" in line else {})
    )
    for file in ("summary.json", "evaluation.json", "analysis/report.json"):
        (failed / file).unlink()
    (root / "zero2-incomplete" / "analysis" / "report.json").unlink()
    (root / "zero2-incomplete" / "ranks" / "rank1.json").unlink()
    (root / "no-run").mkdir()
    return root


def _build(source, run, values, pace, shift):
    shutil.copytree(source, run)
    for rank in range(2, values.get("world_size", 2)):
        _edit(
            run / "ranks" / "rank0.json", {}, run / "ranks" / f"rank{rank}.json", rank=rank, local_rank=rank
        )
    if values.get("world_size") == 1:
        (run / "ranks" / "rank1.json").unlink()
    for path in [*run.glob("*.json"), *run.glob("ranks/*.json")]:
        _edit(path, values)
    _edit(run / "mlflow.json", {"run_id": f"id-{run.name}"})

    def change(line):
        times = {name: pace * value for name, value in line.items() if name.endswith("_ms")}
        losses = {name: line[name] + shift for name in ("loss", "grad_norm") if name in line}
        return line | times | losses

    _edit_lines(run / "metrics.jsonl", change)


def _edit(path, values, target=None, **own):
    """Sets each name of `values` wherever it stands, and `own` at the top."""
    content = _set(json.loads(path.read_text()), values) | own
    (target or path).write_text(json.dumps(content) + "\n")


def _set(content, values):
    if isinstance(content, dict):
        return {
            name: values[name] if name in values else _set(value, values) for name, value in content.items()
        }
    return content


def _edit_lines(path, change):
    lines = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

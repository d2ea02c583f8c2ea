"""What is different in the run directory of a language model: its settings, its layout, its numbers.

    build_text_run(tmp_path / "llm", "llm-3d", LAYOUTS["llm-3d"])

Used by tests of the comparison; every number follows from the arguments.
"""

import json
import math
from dataclasses import dataclass

from tests.stratlab.example_run import build_run_dir, write_json, write_lines

SEQ_LEN = 128
USEFUL = 120  # tokens of a row that hold a document
ND_AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
IMAGE_FACTS = ("num_labels", "image_size", "image_channels", "data_residence")
TEXT_FACTS = {
    "seq_len": SEQ_LEN,
    "tokenizer_sha256": "7a" * 32,
    "text": {"train": {"documents": 512, "rows": 409, "tokens": 45895, "sha256": "b2" * 32}},
    "flops_per_token": 3.0e6,
    "flops_per_token_literature": 3.2e6,
    "attention": "varlen",
}


@dataclass(frozen=True)
class TextLayout:
    """A layout on 8 processes, and what it sends over each axis in a step."""

    name: str
    dimensions: int
    axes: dict[str, int]
    sent: dict[str, float]
    bubble_pct: float | None = None
    sequence_parallel: bool = False
    missing: tuple[str, ...] = ()

    @property
    def world_size(self):
        return math.prod(self.axes.get(axis, 1) for axis in ND_AXES)


TWOS = {"pp": 2, "dp_shard": 2, "tp": 2}
LAYOUTS = {
    "llm-1d": TextLayout("dp8x1", 1, {"dp_replicate": 8}, {"dp_replicate": 8e6}, 0.0),
    "llm-2d": TextLayout("pp2.dp4", 2, {"pp": 2, "dp_shard": 4}, {"pp": 1e6, "dp_shard": 4e6}, 15.0),
    "llm-3d": TextLayout("pp2.dp2.tp2", 3, TWOS, {"pp": 1e6, "dp_shard": 2e6, "tp": 5e6}, 9.0),
    "llm-4d": TextLayout("pp2.dp2.tp2+sp", 4, TWOS, {"pp": 5e5, "dp_shard": 2e6, "tp": 5e6}, 8.0, True),
    "llm-5d": TextLayout("pp2.dp2.tp2+sp.ep4", 5, TWOS | {"ep": 4},
                         {"pp": 5e5, "dp_shard": 1e6, "tp": 5e6, "ep": 3e6}, 12.0, True),
}  # fmt: skip

LACKING = TextLayout("pp8", 3, {"pp": 8}, {"pp": 1e6}, 60.0, missing=("data", "tensor"))
"""A layout without two dimensions that its name promises."""


def build_text_run(root, run, layout, **changes):
    """Writes `<root>/<run>`, of strategy nd, and returns it.

    Args:
        changes: as of `build_run_dir`, applied to the files of a run of images before they become those of text.
    """
    given = {"hosts": ["n"], "world_size": layout.world_size, "processes_per_node": layout.world_size}
    asked = {"task": "text", "model": "qwen_moe_tiny", "dataset": "arithmetic", "seq_len": SEQ_LEN}
    folder = build_run_dir(root, run, "nd", **{**given, **asked, **changes})
    config = _change_config(folder, layout)
    if not (folder / "summary.json").is_file():
        return folder
    _change_metrics(folder / "metrics.jsonl", config["config"]["global_batch_size"])
    _change_ranks(folder / "ranks", layout)
    summary = _change_summary(folder / "summary.json", config, layout)
    report = folder / "analysis" / "report.json"
    if report.is_file():
        content = json.loads(report.read_text())
        pp, micro = layout.axes.get("pp", 1), config["resolved"]["grad_accum_steps"]
        ideal = 100 * (pp - 1) / (micro + pp - 1) if pp > 1 else None
        content["mean"] |= {"bubble_pct": layout.bubble_pct, "bubble_ideal_pct": ideal}
        write_json(report, content)
    names = ("test_loss", "test_perplexity")
    found = {name.removeprefix("test_"): summary[name] for name in names}
    write_json(folder / "evaluation.json", {"split": "test", "samples": 40, "labels": 900, **found})
    return folder


def _change_config(folder, layout):
    config = json.loads((folder / "config.json").read_text())
    resolved = config["resolved"]
    for name in IMAGE_FACTS:
        del resolved[name]
    config["config"]["dimensions"] = layout.dimensions
    axes = dict.fromkeys((*ND_AXES, "ep"), 1) | layout.axes
    micro = config["config"]["micro_batch_size"] * axes["dp_replicate"] * axes["dp_shard"]
    resolved |= TEXT_FACTS | {"axes": axes}
    resolved["grad_accum_steps"] = config["config"]["global_batch_size"] // micro
    resolved["layout"] = {"name": layout.name, "missing": list(layout.missing), **_tell(layout)}
    resolved["layout"]["reason"] = f"{layout.dimensions}D on {layout.world_size} processes"
    write_json(folder / "config.json", config)
    return config


def _change_metrics(path, rows):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "train":
            line |= {
                "tokens": rows * SEQ_LEN,
                "useful_tokens": rows * USEFUL,
                "token_pairs": rows * USEFUL * 60,
            }
        if line["kind"] == "eval":
            del line["validation_accuracy_pct"]
            line["validation_perplexity"] = math.exp(line["validation_loss"])
    write_lines(path, lines)


def _change_ranks(folder, layout):
    for rank in range(layout.world_size):
        path = folder / f"rank{rank}.json"
        facts, left, at = json.loads(path.read_text()), rank, {}
        for axis in reversed(ND_AXES):
            left, at[axis] = divmod(left, layout.axes.get(axis, 1))
        facts["coordinates"] = at
        facts["collectives_per_axis"] = {
            axis: {"all_gather": [4, size]} for axis, size in layout.sent.items()
        }
        if at["pp"] == 1:  # the last stage has the head
            facts["state_memory_gib"] = {kind: 2 * held for kind, held in facts["state_memory_gib"].items()}
        write_json(path, facts)


def _change_summary(path, config, layout):
    summary = json.loads(path.read_text())
    for split in ("validation", "test"):
        del summary[f"{split}_accuracy_pct"], summary[f"{split}_top5_accuracy_pct"]
    del summary["train_accuracy_pct"]
    rows_per_s = summary["samples_per_s"]
    summary |= config["resolved"]["axes"] | {
        "grad_accum_steps": config["resolved"]["grad_accum_steps"],
        "tokens_per_s": rows_per_s * SEQ_LEN,
        "useful_tokens_per_s": rows_per_s * USEFUL,
        "useful_tokens_pct": 100 * USEFUL / SEQ_LEN,
        "flops_per_token_literature": TEXT_FACTS["flops_per_token_literature"],
        "flops_per_useful_token": 2.9e6,
        **dict.fromkeys(("mfu_literature_pct", "mfu_useful_pct")),
        **{f"{split}_perplexity": math.exp(summary[f"{split}_loss"]) for split in ("validation", "test")},
    }
    summary |= {"layout": layout.name, "missing_dimensions": list(layout.missing), **_tell(layout)}
    summary["wire_bytes_per_axis"] = layout.sent
    write_json(path, summary)
    return summary


def _tell(layout):
    facts = {"dimensions": layout.dimensions, "sequence_parallel": layout.sequence_parallel}
    return facts | {"degenerate": bool(layout.missing)}

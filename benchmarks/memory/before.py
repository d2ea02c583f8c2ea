"""What making the lab fair has changed: the same counts by another checkout and by this one, by cause.

    git worktree add --detach ../before 75aa05d
    python -m benchmarks.memory.before ../before            # half an hour; writes benchmarks/memory/before.md and .json
    python -m benchmarks.memory.before ../before --only loss

Both trees count with this interpreter, so that torch and DeepSpeed are the same. 75aa05d is the last tree in which
every strategy paid for the lab's own logits, copies of weights, masks and bookkeeping, and it has the counting
instrument. What is in the file already for these states of both trees' `trainer/` is not counted again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.memory.configurations import CHUNKS, LONG4, PIPELINE, RECOMPUTED, ROWS1, ROWS4, SHARDS, VIT
from benchmarks.memory.report import write_json

HERE = Path(__file__).resolve().parents[2]
PAGE = Path(__file__).with_suffix(".md")
GIB = 2**30
SELECTIVE = "activation_checkpointing=selective"
EARLIER_NAMES = {RECOMPUTED: "grad_checkpointing=true"}
EXPERTS = "model=qwen3-30b-a3b dataset=metamathqa precision=bf16 seq_len=2048 micro_batch_size=1"


@dataclass(frozen=True)
class Pair:
    """One configuration in both trees."""

    name: str
    settings: str
    added: str = ""
    """What only the later tree has, and is set there."""
    rank: int = 0
    ranks_per_node: int = 8
    labels: int = 1000


GROUPS: dict[str, tuple[Pair, ...]] = {
    "1 loss: from hidden states, in chunks": tuple(
        Pair(f"Qwen2.5-3B, {strategy}, 4 rows, chunks of 512 tokens", f"{ROWS4} {settings}", added=CHUNKS)
        for strategy, settings in {
            "ddp": "strategy=ddp", "fsdp": "strategy=fsdp", "zero3": "strategy=zero3", "nd dp8": f"{SHARDS}",
        }.items()
    ),
    "2 bf16: no second copy of the weights": (
        *(Pair(f"ViT-H, {name}, 32 images", f"{VIT} strategy={name}") for name in ("ddp", "fsdp", "zero2", "zero3")),
        Pair("Qwen2.5-3B, fsdp, 1 row", f"{ROWS1} strategy=fsdp"),
        Pair("Qwen2.5-3B, fsdp, 1 row, checkpointing", f"{ROWS1} strategy=fsdp {RECOMPUTED}"),
        Pair("Qwen2.5-3B, zero3, 1 row", f"{ROWS1} strategy=zero3"),
        Pair("Qwen2.5-3B, gpipe, stage 0", f"{PIPELINE} pp_schedule=gpipe"),
        Pair("Qwen2.5-3B, gpipe, stage 1", f"{PIPELINE} pp_schedule=gpipe", rank=4),
    ),
    "3 experts: one implementation": (
        Pair("Qwen3-30B-A3B, nd dp8.ep8, 1 row", f"{EXPERTS} {SHARDS} ep=8 global_batch_size=8"),
    ),
    "5 knobs: gradients in shards, parameters given back": (
        Pair("ViT-H, hsdp, 32 images", f"{VIT} strategy=hsdp dp_replicate=2 dp_shard=4"),
        Pair("ViT-H, zero1, 32 images", f"{VIT} strategy=zero1"),
        Pair("ViT-H, zeropp on two nodes, 32 images", f"{VIT} strategy=zeropp", ranks_per_node=4),
        Pair("Qwen2.5-3B, zero1, 4 rows", f"{ROWS4} strategy=zero1"),
        Pair("Qwen2.5-3B, zero2, 4 rows", f"{ROWS4} strategy=zero2"),
        Pair("Qwen2.5-3B, fsdp, 4 rows, checkpointing", f"{ROWS4} strategy=fsdp {RECOMPUTED}"),
        Pair("Qwen2.5-3B, fsdp, 4 rows, selective", f"{ROWS4} strategy=fsdp", added=SELECTIVE),
    ),
    "6 packed rows: without masks": (
        Pair("Qwen2.5-3B, ddp, 4 rows of 4096 tokens", f"{ROWS4} {LONG4}"),
        Pair("Qwen2.5-3B, nd tp2.cp2.dp2, 1 row",
             f"{ROWS1} strategy=nd layout=given tp=2 cp=2 dp_shard=2 global_batch_size=4"),
    ),
}  # fmt: skip


def main() -> int:
    """0, or 1 where a count has failed."""
    asked = _parser().parse_args()
    trees = {"before": asked.before.resolve(), "after": HERE}
    states = {name: _ask_git(tree, "HEAD:trainer") for name, tree in trees.items()}
    kept = PAGE.with_suffix(".json")
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    rows = found["rows"] if found.get("states") == states else {}
    failed = False
    waiting = [
        (pair, name)
        for group, pairs in GROUPS.items() if asked.only in group
        for pair in pairs for name in trees if name not in rows.get(pair.name, {})
    ]  # fmt: skip
    for number, (pair, name) in enumerate(waiting, 1):
        count = _count(trees[name], pair, later=name == "after")
        failed |= "failed" in count
        said = f"{count['gib']['peak']:.2f} GiB" if "gib" in count else count["failed"]
        print(f"{number}/{len(waiting)}  {pair.name}, {name}: {said}", flush=True)
        if "gib" in count:
            rows.setdefault(pair.name, {})[name] = count
        write_json(kept, {"states": states, "rows": rows})
    commits = {name: _ask_git(tree, "HEAD")[:7] for name, tree in trees.items()}
    PAGE.write_text("\n".join(_write_page(rows, commits)) + "\n")
    return 1 if failed else 0


def _count(tree: Path, pair: Pair, later: bool) -> dict[str, Any]:
    settings = [one if later else EARLIER_NAMES.get(one, one) for one in pair.settings.split()]
    settings += pair.added.split() * later
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        options = {
            "ranks": 8,
            "rank": pair.rank,
            "per-node": pair.ranks_per_node,
            "labels": pair.labels,
            "json": out.name,
        }
        command = [sys.executable, "-m", "trainer.count"]
        command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
        named = dict(one.split("=", 1) for one in settings)  # the last one counts
        command += [word for name, value in named.items() for word in ("--set", f"{name}={value}")]
        environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
        if done.returncode:
            return {"failed": done.stderr.strip()[-600:]}
        content = json.loads(Path(out.name).read_text())
    gib = {"peak": content["peak_bytes"]} | {name: size for name, size in content["causes"].items() if size}
    collectives = {f"{c['operator']} {c['dtype']}": c["bytes"] for c in content["collectives"]}
    return {
        "gib": {name: round(size / GIB, 3) for name, size in gib.items()},
        "gathered_at_once_gib": round(content["gathered_bytes"] / GIB, 3),
        "collectives_gib": {name: round(size / GIB, 3) for name, size in collectives.items()},
        "versions": content["versions"],
    }


def _write_page(rows: dict[str, Any], commits: dict[str, str]) -> Iterator[str]:
    yield "# Memory before and after, by cause"
    yield ""
    yield (
        f"Counted by `python -m trainer.count` in two trees, {commits['before']} and {commits['after']}, with the same "
        "torch and DeepSpeed: rank 0 of 8 unless another is named, second step, CUDA's rules, **no device took part**. "
        'GiB. One line per cause that takes 0.005 GiB or more in one of the two; "sent" is what the rank puts out in '
        "one step, by collective and element type. Written by `python -m benchmarks.memory.before`."
    )
    for group, pairs in GROUPS.items():
        known = [pair for pair in pairs if set(rows.get(pair.name, {})) == {"before", "after"}]
        yield from ("", f"## {group}")
        for pair in known:
            yield from ("", f"**{pair.name}**", "", "| | before | after |", "|---|---|---|")
            before, after = rows[pair.name]["before"], rows[pair.name]["after"]
            yield from _list_lines(before["gib"], after["gib"])
            together = (
                {"most gathered at once": before["gathered_at_once_gib"]},
                {"most gathered at once": after["gathered_at_once_gib"]},
            )
            yield from _list_lines(*together)
            yield from _list_lines(before["collectives_gib"], after["collectives_gib"], mark="sent: ")


def _list_lines(before: dict[str, float], after: dict[str, float], mark: str = "") -> Iterator[str]:
    for name in dict.fromkeys([*before, *after]):
        sizes = before.get(name, 0.0), after.get(name, 0.0)
        if max(sizes) >= 0.005:
            shown = " | ".join(f"**{size:.2f}**" if name == "peak" else f"{size:.2f}" for size in sizes)
            yield f"| {mark}{name} | {shown} |"


def _ask_git(tree: Path, what: str) -> str:
    asked = ("git", "rev-parse", what)
    return subprocess.run(asked, cwd=tree, capture_output=True, text=True, check=True).stdout.strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory.before", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("before", type=Path, help="another checkout")
    parser.add_argument("--only", default="", metavar="WORD", help="groups that hold it in their name")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""How fast a token cache is made, and how full its rows are, against `datasets.map` and padding to the longest.

    python benchmarks/tokens.py [--tokenizer FOLDER_OR_HUB_ID] [--seq-len 512] [--documents 4000]

The peer does what a script for Hugging Face's Trainer does: `datasets.map` over chats (`apply_chat_template` with
`tokenize=True`, one process), rows cut at `seq_len`, each padded to it. Both read the same json file; times are wall
clock on this machine and CPU seconds of this process, with what both need loaded before. Tokens are those of documents.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets

from stratlab_spec.settings.config import Config
from trainer.data.text.text_source import generate_arithmetic
from trainer.data.text.token_rows import open_text
from trainer.data.text.tokenizer import load_tokenizer
from trainer.prepare.preparation import ensure_cache


def main() -> None:
    """Prints one line for each of the two, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", default="")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--documents", type=int, default=4000)
    given = parser.parse_args()
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        rows = generate_arithmetic()
        rows = (rows * (given.documents // len(rows) + 1))[: given.documents]
        path = Path(folder, "train.jsonl")
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = Config(
            run="x",
            model="qwen_tiny",
            tokenizer=given.tokenizer,
            dataset_path=str(path),
            seq_len=given.seq_len,
            results=folder,
        )
        load_tokenizer(config)
        measure("token cache", given.seq_len, lambda: make_cache(config))
        measure("datasets.map, padded", given.seq_len, lambda: map_and_pad(config, path))


def measure(name: str, seq_len: int, make: Callable[[], tuple[int, int]]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    tokens, rows = make()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    facts = {
        "what": name,
        "wall_s": round(wall, 2),
        "cpu_s": round(cpu, 2),
        "tokens": tokens,
        "rows": rows,
        "useful_pct": round(100 * tokens / (rows * seq_len), 2),
        "tokens_per_s": round(tokens / wall),
        "tokens_per_cpu_s": round(tokens / cpu),
        "cores": os.cpu_count(),
    }
    print(json.dumps(facts), flush=True)


def make_cache(config: Config) -> tuple[int, int]:
    """(tokens, rows) of all splits."""
    ensure_cache(config, lambda text: None)
    facts = open_text(config).facts.values()
    return sum(split["tokens"] for split in facts), sum(split["rows"] for split in facts)


def map_and_pad(config: Config, path: Path) -> tuple[int, int]:
    """(tokens, rows)."""
    tokenizer = load_tokenizer(config)

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        asked = [{"role": "user", "content": row["query"]}]
        chat = [*asked, {"role": "assistant", "content": row["response"]}]
        prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
        ids = tokenizer.apply_chat_template(chat, return_dict=False)[: config.seq_len]
        padding = config.seq_len - len(ids)
        labels = [-100] * min(len(prompt), len(ids)) + ids[len(prompt) :] + [-100] * padding
        return {"input_ids": ids + [tokenizer.pad_token_id] * padding, "labels": labels, "used": len(ids)}

    table = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(path.parent))
    table = table.map(encode, remove_columns=table.column_names, load_from_cache_file=False)
    return sum(table["used"]), len(table)


if __name__ == "__main__":
    main()

"""Count the operations files that come with stratlab again, from the settings that they keep.

    python benchmarks/shipped_operations.py                      # list files that differ from today's counts: 9 minutes
    python benchmarks/shipped_operations.py qwen2.5-3b-zero3-8   # only these
    python benchmarks/shipped_operations.py --write qwen2.5-3b-zero3-8

Needs no device. Ends with 1 if a file differs and is not written.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"  # read by DeepSpeed at its import

from stratlab_spec.memory.profiles import SHIPPED
from stratlab_spec.run_directory import write_json
from stratlab_spec.settings.config import PREFIX, Config
from trainer.memory_estimation.memory_profile import build_operations

DATA = {True: "metamathqa", False: "timm/imagenet-1k"}
COUNTED = ("peak_bytes", "between_steps_bytes", "collective_bytes", "windows")


def main(arguments: list[str]) -> int:
    """Compare the files; return 0 if all are as counted, or written; 1 if a file differs; 2 for a missing file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="of files, without .json (default: all)", metavar="NAME")
    parser.add_argument(
        "--folder", type=Path, default=SHIPPED, help="of the files (default: the shipped ones)"
    )
    parser.add_argument("--write", action="store_true", help="write those that differ")
    given = parser.parse_args(arguments)
    paths = [given.folder / f"{name}.json" for name in given.names] or sorted(given.folder.glob("*.json"))
    if missing := [path.stem for path in paths if not path.is_file()]:
        print(f"{given.folder}: {', '.join(missing)} missing [SL-shipped-missing]", file=sys.stderr)
        return 2
    warnings.filterwarnings("ignore")  # of libraries, about tensors without storage
    differ = 0
    for number, path in enumerate(paths, 1):
        kept = json.loads(path.read_text())
        found = count_again(kept, ranks=int(path.stem.rpartition("-")[2]))
        changes = list(find_changes(kept, found))
        print(f"{number}/{len(paths)} {path.stem}: {'; '.join(changes) or 'as counted'}", flush=True)
        differ += bool(changes)
        if changes and given.write:
            write_json(path, found)
    return int(differ and not given.write)


def count_again(kept: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """Return a file's content by today's count."""
    fields = Config.model_fields
    own = {name: value for name, value in kept["settings"].items() if value != fields[name].default}
    env = {f"{PREFIX}{name.upper()}": _written(value) for name, value in own.items()}
    is_text = not kept["labels"]
    dp = kept["samples"][0]["axes"]["dp_replicate"] * kept["samples"][0]["axes"]["dp_shard"]
    env |= {
        f"{PREFIX}RUN": "counted",
        f"{PREFIX}DATASET": DATA[is_text],
        f"{PREFIX}MICRO_BATCH_SIZE": "1",
        f"{PREFIX}GLOBAL_BATCH_SIZE": str(dp * (64 if kept["accumulates"] else 1)),
    }
    per_node = kept.get("per_node", ranks)
    return build_operations(env, ranks, per_node, kept["labels"], kept["channels"], say=lambda text: None)


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def find_changes(kept: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences from today's count, in words."""
    if kept["key"] != found["key"]:
        yield f"key {kept['key']} is {found['key']}"
    before, now = (
        {tuple(one[name] for name in ("layers", "rows", "ranks", "rank")): one for one in file["samples"]}
        for file in (kept, found)
    )
    if before.keys() != now.keys():
        yield f"counts of (layers, rows, ranks, rank) {sorted(before.keys() ^ now.keys())} are in one of them"
    for name in sorted((kept.keys() | found.keys()) - {"key", "samples", "seconds"}):
        if kept.get(name) != found.get(name):
            yield f"{name} differs"
    for name in COUNTED:
        same = [at for at in before.keys() & now.keys() if before[at][name] == now[at][name]]
        if others := len(before.keys() & now.keys()) - len(same):
            yield f"{name} differs in {others} of {len(before)} counts"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

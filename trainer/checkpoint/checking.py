"""Hashes of a checkpoint compared by all ranks, each its share of the files, while rank 0 chooses one.

rank 0          manifest in order? ─▶ files to all ─▶ own share ─▶ answers of all ─▶ the next, older one, or done
other ranks                           own share ─▶ answer ─▶ wait for more files, or for the end
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist

from trainer.checkpoint.manifest import compare_files, find_problem

Files = dict[str, dict[str, Any]]


def find_problem_together(folder: Path, group: Any) -> str | None:
    """As `find_problem`; on rank 0, while the others are in `help_checking`."""
    return find_problem(folder, lambda _, files: _compare_share(folder, files, group))


def end_checking(group: Any) -> None:
    """Rank 0 has chosen."""
    dist.broadcast_object_list([None], group=group)


def help_checking(group: Any) -> None:
    """On every rank but 0: compares what it is given, until rank 0 has chosen."""
    while True:
        asked: list[Any] = [None]
        dist.broadcast_object_list(asked, group=group)
        if asked[0] is None:
            return
        folder, files = asked[0]
        _answer(folder, files, group)


def deal(files: Files, ranks: int) -> list[Files]:
    """Shares of about equal bytes, the largest files first."""
    shares: list[Files] = [{} for _ in range(ranks)]
    sizes = [0] * ranks
    for name in sorted(files, key=lambda name: (-files[name]["bytes"], name)):
        rank = sizes.index(min(sizes))
        shares[rank][name] = files[name]
        sizes[rank] += files[name]["bytes"]
    return shares


def _compare_share(folder: Path, files: Files, group: Any) -> str | None:
    dist.broadcast_object_list([(folder, files)], group=group)
    return _answer(folder, files, group)


def _answer(folder: Path, files: Files, group: Any) -> str | None:
    found = compare_files(folder, deal(files, dist.get_world_size())[dist.get_rank()])
    answers: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, found, group=group)
    return next((answer for answer in answers if answer), None)

"""What is asked for, from the command line: every setting is declared and checked here."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trainer.config import ConfigError

EXAMPLE = """examples:
  python -m trainer.prepare --dataset microsoft/cats_vs_dogs --name pets --to /results
  python -m trainer.prepare --dataset /results/raw/pets --name pets --to /results
  python -m trainer.prepare --model google/vit-base-patch16-224 --name vit-base --to /results

A second start finds DONE.json and ends at once. A token for the hub is read from HF_TOKEN.

exit codes: 0 it is there, 1 worth another try, 2 bad settings or the name is taken, 3 no such data set or model,
13 storage full, 143 stopped"""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)?")
REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
STALE_AFTER_S = 120.0  # above the 60 s for which an NFS client may keep a file's attributes


@dataclass(frozen=True)
class Request:
    """One data set or model under one name."""

    kind: str
    """dataset or model"""
    source: str
    """id on the hub, or absolute path"""
    name: str
    results: Path
    revision: str
    """as asked: branch, tag or commit; "" = the newest"""
    subset: str
    """of a data set that has several; "" = its only one"""
    stale_after_s: float

    @property
    def is_local(self) -> bool:
        return os.path.isabs(self.source)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError([message])


def read_request(arguments: Sequence[str]) -> Request:
    """The request, checked as far as that goes without looking at the source.

    Raises:
        ConfigError: naming every wrong or unknown setting.
        SystemExit: --help.
    """
    given = _build_parser().parse_args(arguments)
    kind = "dataset" if given.dataset is not None else "model"
    source = given.dataset if given.dataset is not None else given.model
    problems = []
    if source.startswith((".", "/")):
        source = os.path.abspath(source)
    elif not HUB_ID.fullmatch(source):
        problems.append(
            f"--{kind} {source!r}: neither a path (/... or ./...) nor an id on the hub (owner/name)"
        )
    if kind == "model" and os.path.isabs(source):
        problems.append(f"--model {source!r}: expected an id on the hub; a local model needs no preparing")
    if source == "digits":
        problems.append("--dataset 'digits': is built into the trainer, there is nothing to prepare")
    if not NAME.fullmatch(given.name):
        problems.append(
            f"--name {given.name!r}: use letters, digits, ., _ and -, and start with a letter or digit"
        )
    if given.revision and (os.path.isabs(source) or not REVISION.fullmatch(given.revision)):
        problems.append(f"--revision {given.revision!r}: a branch, tag or commit of an id on the hub")
    if given.subset and kind == "model":
        problems.append(f"--subset {given.subset!r}: a model has none")
    if not given.to.is_dir():
        problems.append(f"--to {str(given.to)!r}: no such folder; is the results volume mounted?")
    if not 1 <= given.stale_after_s <= 3600:
        problems.append(f"--stale-after-s {given.stale_after_s:g}: from 1 to 3600")
    if problems:
        raise ConfigError(problems)
    return Request(kind, source, given.name, given.to, given.revision, given.subset, given.stale_after_s)


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m trainer.prepare",
        description="Puts a data set or a model onto the results volume, once: <to>/_prepared/<name>/",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--dataset", metavar="SOURCE", help="id on the hub, or a local path in `datasets` format"
    )
    what.add_argument("--model", metavar="ID", help="id on the hub; its safetensors files, never pickles")
    parser.add_argument("--name", required=True, help="name of the folder")
    parser.add_argument(
        "--to", required=True, type=Path, metavar="FOLDER", help="where the results volume is"
    )
    parser.add_argument(
        "--revision", default="", help="branch, tag or commit on the hub (default: the newest)"
    )
    parser.add_argument("--subset", default="", help="of a data set that has several")
    parser.add_argument(
        "--stale-after-s",
        type=float,
        default=STALE_AFTER_S,
        metavar="SECONDS",
        help=f"without a heartbeat for so long, this start counts as dead (default: {STALE_AFTER_S:g})",
    )
    return parser

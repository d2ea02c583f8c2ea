"""The options of `python -m trainer.prepare`, and the request of a run for its token cache."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from stratlab_spec.registry import PUBLISHED_FILES
from stratlab_spec.settings.config import Config, ConfigError, describe_error
from stratlab_spec.settings.fields import LONGEST_NAME, TEXT_MODELS
from trainer.data.text.token_cache import cache_name, data_name

EXAMPLE = """examples:
  python -m trainer.prepare --dataset microsoft/cats_vs_dogs --name pets --to /results
  python -m trainer.prepare --dataset /results/raw/pets --name pets --to /results
  python -m trainer.prepare --model google/vit-base-patch16-224 --name vit-base --to /results
  python -m trainer.prepare --weights mobilenet --name mobilenet-weights --to /results
  python -m trainer.prepare --dataset metamathqa --tokenize qwen2.5-3b --seq-len 2048 --to /results

A second start finds DONE.json and ends immediately. HF_TOKEN holds the token for the hub.

exit codes: 0 prepared, 1 failed (retry), 2 bad settings or the name is taken, 3 no such data set or model,
13 storage full, 143 stopped"""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)?")
REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
TOKEN_OPTIONS = {
    "seq_len": "seq_len",
    "no_packing": "packing",
    "validation_fraction": "validation_fraction",
    "train_samples": "train_samples",
    "text_columns": "text_columns",
    "chat_roles": "chat_roles",
    "long_documents": "long_documents",
}
"""Options of a token cache and the settings of a run that they set."""
KINDS = ("dataset", "model", "weights")
STALE_AFTER_S = 120.0  # above the 60 s for which an NFS client may cache a file's attributes


@dataclass(frozen=True)
class Request:
    """One data set, model or token cache under one name."""

    kind: str
    """dataset, model, weights or tokens"""
    source: str
    """id on the hub, absolute path, or a network of torchvision; for tokens only a label"""
    name: str
    results: Path
    revision: str
    """as requested: branch, tag or commit; "" = the newest"""
    subset: str
    """for a data set with several subsets; "" = its only one"""
    stale_after_s: float
    config: Config | None = None
    """token caches only: the settings of the runs that will read it"""
    own_process: bool = True
    """whether downloads may be stored below the folder; False in a launcher: its ranks need the hub's files again"""

    @property
    def is_local(self) -> bool:
        return os.path.isabs(self.source)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} [SL-prepare-arguments]")


def read_request(arguments: Sequence[str]) -> Request:
    """Parse the request and check everything that does not need the source.

    Raises:
        ConfigError: names every wrong or unknown setting.
        SystemExit: --help.
    """
    given = _build_parser().parse_args(arguments)
    if given.tokenize is not None:
        return _read_tokens(given)
    kind = next(name for name in KINDS if getattr(given, name) is not None)
    source = getattr(given, kind)
    if kind != "weights" and source.startswith((".", "/")):
        source = os.path.abspath(source)
    if problems := [*_source_problems(given, kind, source), *_volume_problems(given)]:
        raise ConfigError(problems)
    return Request(kind, source, given.name, given.to, given.revision, given.subset, given.stale_after_s)


def _source_problems(given: argparse.Namespace, kind: str, source: str) -> Iterator[str]:
    local = kind != "weights" and os.path.isabs(source)
    if kind == "weights" and source not in PUBLISHED_FILES:
        yield f"--weights {source!r}: expected one of {', '.join(PUBLISHED_FILES)} [SL-weights-name]"
    if kind != "weights" and not local and not HUB_ID.fullmatch(source):
        yield (
            f"--{kind} {source!r}: expected a path (/... or ./...) or an id on the hub (owner/name) [SL-source-name]"
        )
    if kind == "model" and local:
        yield f"--model {source!r}: expected an id on the hub; a local model needs no preparation [SL-model-local]"
    if source == "digits":
        yield "--dataset 'digits': is built into the trainer and needs no preparation [SL-dataset-built-in]"
    if unused := [option for option in TOKEN_OPTIONS if getattr(given, option) is not None]:
        yield f"{', '.join(map(_flag, unused))}: allowed only with --tokenize [SL-option-needs-tokenize]"
    if given.name is None:
        yield "--name: is missing; name the folder [SL-name-absent]"
    elif not NAME.fullmatch(given.name) or len(given.name) > LONGEST_NAME:
        yield (
            f"--name {given.name!r}: use letters, digits, ., _ and -, start with a letter or digit, and use at most "
            f"{LONGEST_NAME} characters [SL-name-form]"
        )
    if given.revision and kind == "weights":
        yield f"--revision {given.revision!r}: not allowed, torchvision has no revisions [SL-revision-of-weights]"
    elif given.revision and (local or not REVISION.fullmatch(given.revision)):
        yield f"--revision {given.revision!r}: expected a branch, tag or commit of an id on the hub [SL-revision-form]"
    if given.subset and kind != "dataset":
        yield f"--subset {given.subset!r}: not allowed, a model has no subsets [SL-subset-of-model]"


def token_request(config: Config, stale_after_s: float = STALE_AFTER_S, *, own_process: bool) -> Request:
    """Return the request for the token cache of these settings; its name depends on everything in it.

    Raises:
        DataMissing: the data set does not exist, or the folder has no tokenizer.
    """
    source, name = data_name(config), cache_name(config)
    return Request("tokens", source, name, Path(config.results), "", "", stale_after_s, config, own_process)


def _read_tokens(given: argparse.Namespace) -> Request:
    refused = {"name": None, "model": None, "weights": None, "revision": "", "subset": ""}
    problems = [
        *_volume_problems(given),
        *(
            f"--{option}: not allowed with --tokenize, which names the folder itself [SL-option-with-tokenize]"
            for option, default in refused.items()
            if getattr(given, option) != default
        ),
    ]
    if given.dataset is None:
        problems.append("--tokenize: --dataset is missing [SL-dataset-not-given]")
    settings: dict[str, Any] = {"run": "prepare", "results": str(given.to), "task": "text"}
    for option, setting in TOKEN_OPTIONS.items():
        if getattr(given, option) is not None:
            settings[setting] = getattr(given, option)
    data, tokenizer = given.dataset or "arithmetic", given.tokenize
    local = data.startswith((".", "/"))
    settings["dataset_path" if local else "dataset"] = os.path.abspath(data) if local else data
    if tokenizer.startswith((".", "/")):
        tokenizer = os.path.abspath(tokenizer)
    settings["model" if tokenizer in TEXT_MODELS else "tokenizer"] = tokenizer
    try:
        config = Config.model_validate(settings)
    except ValidationError as failure:
        options = {setting: _flag(option) for option, setting in TOKEN_OPTIONS.items()}
        for error in failure.errors():
            option = options.get(str(error["loc"][0]), f"--{error['loc'][0]}")
            problems.append(f"{option} {error['input']!r}: {describe_error(error)} [SL-option-value]")
    if problems:
        raise ConfigError(problems)
    return token_request(config, given.stale_after_s, own_process=True)


def _volume_problems(given: argparse.Namespace) -> Iterator[str]:
    if not given.to.is_dir():
        yield f"--to {str(given.to)!r}: no such folder; is the results volume mounted? [SL-to-absent]"
    if not 1 <= given.stale_after_s <= 3600:
        yield f"--stale-after-s {given.stale_after_s:g}: expected 1 to 3600 [SL-stale-after]"


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m trainer.prepare",
        description="Put a data set, a model or a token cache onto the results volume, once: <to>/_prepared/<name>/",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what, add = parser.add_mutually_exclusive_group(required=True), parser.add_argument
    what.add_argument(
        "--dataset", metavar="SOURCE", help="id on the hub, or a local path in `datasets` format"
    )
    add(
        "--tokenize",
        metavar="TOKENIZER",
        help="build the token cache of runs with this data set: the name of a language model of the trainer, an id "
        "on the hub, or a local folder with a tokenizer.json",
    )
    tokenize = "with --tokenize: the same value as in the run"
    add("--seq-len", type=int, metavar="TOKENS", help=tokenize)
    add("--no-packing", action="store_const", const=False, help="with --tokenize: one document per row")
    add("--validation-fraction", type=float, metavar="SHARE", help=tokenize)
    add("--train-samples", type=int, metavar="COUNT", help=tokenize)
    add("--text-columns", metavar="PART=COLUMN,...", help=tokenize)
    add("--chat-roles", metavar="strict|merge", help=tokenize)
    add("--long-documents", metavar="cut|drop", help=tokenize)
    what.add_argument(
        "--model", metavar="ID", help="id on the hub; only its safetensors files, never pickles"
    )
    weights = "weights of torchvision for <NETWORK>_finetuned; the folder becomes a TORCH_HOME"
    what.add_argument("--weights", metavar="NETWORK", help=weights)
    add("--name", help="name of the folder; for a token cache it follows from the settings")
    add("--to", required=True, type=Path, metavar="FOLDER", help="mount point of the results volume")
    add("--revision", default="", help="branch, tag or commit on the hub (default: the newest)")
    add("--subset", default="", help="subset of a data set that has several")
    add(
        "--stale-after-s",
        type=float,
        default=STALE_AFTER_S,
        metavar="SECONDS",
        help=f"a start without a heartbeat for this long counts as dead (default: {STALE_AFTER_S:g})",
    )
    return parser

"""The command `python -m trainer.count`: count the memory of one rank without a GPU and without data."""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from stratlab_spec.exit_codes import BAD_CONFIG, DATA_MISSING, DONE, DataMissing
from stratlab_spec.run_directory import write_json
from stratlab_spec.settings.config import PREFIX, ConfigError
from trainer.memory_estimation.rules import read_countable

EXAMPLE = """\
Settings are TRAINER_* variables, as a pod has them, or --set name=value, which goes first.

  python -m trainer.count --ranks 8 --set strategy=fsdp --set model=vit_huge --set dataset=timm/imagenet-1k \\
      --set precision=bf16 --set micro_batch_size=32 --set global_batch_size=512
  python -m trainer.count --ranks 8 --set strategy=fsdp --set model=qwen2.5-3b --set dataset=metamathqa \\
      --set seq_len=2048 --set micro_batch_size=1 --set global_batch_size=64 --operations fsdp.json
  python -m trainer.count --ranks 8 --rank 4 --set strategy=nd --set layout=given --set pp=2 --set dp_shard=4 \\
      --set model=qwen2.5-3b --set dataset=metamathqa --set seq_len=2048 --set micro_batch_size=1 --json stage1.json

The run's own engine takes two steps on tensors without storage; the second one is counted. What that proves, and
what is not in it: docs/memory.md. Exit codes: 0, 2 = settings that cannot be counted, 3 = a model that is not there."""
PROGRESS_S = 5.0
Say = Callable[[str], None]


def main(arguments: list[str], env: Mapping[str, str]) -> int:
    """Print the table; return an exit code of stratlab_spec/exit_codes.py."""
    given = _parse(arguments)
    per_node = given.per_node or given.ranks
    try:
        config = read_countable(_settings(env, given.set), given.ranks, given.rank, per_node)
        if problems := list(_file_problems(given)):
            raise ConfigError(problems)
        begin, say = _build_say()
        begin("loading torch and DeepSpeed")
        os.environ["DS_ACCELERATOR"] = "cpu"  # read by DeepSpeed at its import
        warnings.filterwarnings("ignore")  # of libraries, about tensors without storage
        if given.operations:
            _write_operations(given, env, per_node, begin)
            return DONE
        from stratlab_spec.models.pictures import find_pictures
        from trainer.memory_estimation.steps import count

        pictures = find_pictures(config, given.labels, given.channels)
        found = count(config, given.ranks, given.rank, pictures, per_node=per_node, begin=begin, say=say)
    except ConfigError as failure:
        print(failure, file=sys.stderr)
        return BAD_CONFIG
    except DataMissing as failure:
        print(failure, file=sys.stderr)
        return DATA_MISSING
    print("\n".join(found.lines(given.top)))
    if given.json:
        write_json(Path(given.json), found.as_dict())
    return DONE


def _file_problems(given: argparse.Namespace) -> Iterator[str]:
    for option in ("json", "operations"):
        file = getattr(given, option)
        if file and Path(file).is_dir():
            yield f"--{option}={file}: is a folder, expected a file [SL-count-file-is-folder]"
        elif file and not Path(file).absolute().parent.is_dir():
            yield f"--{option}={file}: its folder is missing [SL-count-file-no-folder]"
        elif file and not os.access(Path(file).absolute().parent, os.W_OK):
            yield f"--{option}={file}: its folder cannot be written [SL-count-file-unwritable]"
    if given.operations and (given.json or given.rank):
        yield (
            "--operations: counts the ranks that it needs, several times; leave out --rank and --json "
            "[SL-count-operations-alone]"
        )


def _write_operations(given: argparse.Namespace, env: Mapping[str, str], per_node: int, begin: Say) -> None:
    from trainer.memory_estimation.memory_profile import build_operations

    settings = _settings(env, given.set)
    content = build_operations(settings, given.ranks, per_node, given.labels, given.channels, say=begin)
    write_json(Path(given.operations), content)
    scaled = [name for name in ("depth", "ranks") if content[f"scales_{name}"]]
    print(
        f"{given.operations}: {len(content['samples'])} counts in {content['seconds']:.0f} s, key {content['key']}"
    )
    print(f"answers for every micro-batch{''.join(f', {name}' for name in scaled)}")
    if content["why_not_scaled"]:
        print(f"depth not scaled: {content['why_not_scaled']}")


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.count",
        description="Peak memory of one rank of a run by cause, counted without a GPU and without data.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=_positive, required=True, help="processes in all")
    parser.add_argument("--rank", type=int, default=0, help="which of them (default: 0)")
    parser.add_argument("--per-node", type=_positive, help="processes on a node (default: all)")
    parser.add_argument("--set", action="append", default=[], metavar="name=value", help="a setting")
    parser.add_argument("--labels", type=_positive, default=0, help="classes of an image data set")
    parser.add_argument("--channels", type=_positive, default=0, help="of its images (default: 3)")
    parser.add_argument("--top", type=_positive, default=12, help="groups of storages to list (default: 12)")
    parser.add_argument("--json", metavar="FILE", help="write everything there as well")
    parser.add_argument(
        "--operations",
        metavar="FILE",
        help="write `stratlab predict`'s operations file there: several small counts",
    )
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, found {text!r} [SL-count-number]")
    return int(text)


def _settings(env: Mapping[str, str], given: list[str]) -> dict[str, str]:
    if wrong := [text for text in given if "=" not in text]:
        raise ConfigError([f"--set {text}: expected name=value [SL-count-set]" for text in wrong])
    typed = (text.partition("=") for text in given)
    named = {f"{PREFIX}{name.upper()}": value for name, _, value in typed}
    return {f"{PREFIX}RUN": "count", **env, **named}


def _build_say() -> tuple[Say, Say]:
    """Return two functions that print to stderr: one for each beginning, one for progress every PROGRESS_S."""
    began = last = time.monotonic()

    def begin(text: str) -> None:
        nonlocal last
        last = time.monotonic()
        print(f"{last - began:5.0f} s  {text}", file=sys.stderr, flush=True)

    def say(text: str) -> None:
        if time.monotonic() - last >= PROGRESS_S:
            begin(text)

    return begin, say

"""Count runs that no file answers: the command to type, and the trainer itself if it is installed.

The trainer accepts the command unchanged, and its file answers the question that it came from. Called from here it
reports rejected settings, and counts; counts are kept.
"""

from __future__ import annotations

import functools
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stratlab.predict.remedies import NODE, list_foreign
from stratlab.run_settings import SETTINGS
from stratlab.trainer_program import VARIABLE, explain_trainer, name_settings
from stratlab_spec.memory.profiles import IRRELEVANT, OperationsFile, Question, read_operations_file
from stratlab_spec.models.model_specs import IMAGE_SIZES
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.wording import as_text
from stratlab_spec.strategies import STRATEGIES

FIRST = ("task", "model", "model_path", "init", "teacher", "strategy", "dataset", "seq_len", "image_size")
"""As a reader looks for them."""
BATCH = ("micro_batch_size", "global_batch_size")
COUNTED = (
    *FIRST,
    *(name for name in Config.model_fields if name not in {*FIRST, *BATCH, *IRRELEVANT}),
    *BATCH,
)
"""Settings of a count, if they differ from their defaults: all on which memory depends."""
ALWAYS = ("model", "strategy", *BATCH)
OF_IMAGES = {"dataset": "timm/imagenet-1k"}
OF_TEXT = {"dataset": "metamathqa", "seq_len": "2048"}
"""Data of a usual size: a data set gives a count its classes and channels, or nothing."""


def name_count(question: Question, alike: Sequence[Question] = ()) -> str:
    """Return `python -m trainer.count ...`, with settings that the question leaves out filled in.

    Args:
        alike: questions that the same command answers with another strategy.
    """
    given = _fill(question)
    words = ["python", "-m", "trainer.count", "--ranks", str(question.ranks)]
    if per_node := _per_node(question, (question, *alike)):
        words += ["--per-node", str(per_node)]
    for name in COUNTED:
        if name in given and (name in ALWAYS or given[name] != as_text(SETTINGS[name]["default"])):
            words += ["--set", f"{name}={given[name]}"]
    words += ["--operations", f"FOLDER/{question.name.replace(' ', '-')}.json"]
    return shlex.join(words)


def fill_question(question: Question) -> Question:
    """Return the question with the settings and the ranks of a node that the count's command would have."""
    if question.whole:
        return question
    per_node = _per_node(question, (question,)) or question.ranks
    return replace(question, settings=_fill(question), per_node=per_node)


def _fill(question: Question) -> dict[str, str]:
    given = {
        name: text
        for name in COUNTED
        if (text := question.settings.get(name)) and (question.whole or _is_meant(question, name, text))
    }
    if question.whole:
        return given
    rows = str(question.rows)
    batch = {"micro_batch_size": rows, "global_batch_size": str(2 * question.rows * question.ranks)}
    return {**_data_of(given.get("model", "")), **batch, **given}


def _is_meant(question: Question, name: str, text: str) -> bool:
    """Return whether to pass a setting to the trainer: it was typed, or is not a default and not another strategy's.

    The trainer would reject another strategy's knobs and layout.
    """
    if name in question.typed or name in ALWAYS or name in OF_TEXT:
        return True
    foreign = list_foreign(question.settings.get("strategy", ""))
    return text != as_text(SETTINGS[name]["default"]) and name not in foreign


def group_by_command(questions: Sequence[Question]) -> list[list[Question]]:
    """Group questions with the same command, except for its strategy."""
    groups: dict[str, list[Question]] = {}
    for one in questions:
        given = {name: one.settings.get(name) for name in COUNTED if name != "strategy"}
        key = repr((one.ranks, one.per_node, "strategy" in one.settings or one.name, given))
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def _data_of(model: str) -> Mapping[str, str]:
    """Return a preset's data; a model of a folder or the hub counts as a language model, as most are."""
    return OF_IMAGES if model in IMAGE_SIZES else OF_TEXT


def _per_node(question: Question, asked: Sequence[Question]) -> int:
    """Return the ranks of a node; 0 = all ranks share it. Strategies by nodes need at least two nodes."""
    ranks, told = question.ranks, question.per_node
    if told:
        return told if told != ranks else 0
    if ranks > NODE and ranks % NODE == 0:
        return NODE
    by_nodes = any(row.by_nodes for one in asked if (row := STRATEGIES.get(one.settings.get("strategy", ""))))
    return ranks // 2 if by_nodes and ranks % 2 == 0 and ranks <= NODE else 0


class NotCounted(Exception):
    """The trainer is missing, or rejects the settings, with its message."""


class CountRefused(NotCounted):
    """These settings cannot be counted: counting them by hand would end in the same way."""


REFUSED = 2
"""The trainer's exit code for wrong settings."""


def find_cache() -> Path:
    """Return the folder of this machine's counts: $XDG_CACHE_HOME/stratlab/operations."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratlab" / "operations"


def count_operations(question: Question, cache: Path) -> OperationsFile:
    """Count for the settings of `question`, which takes half a minute or more, and keep the file in `cache` if
    possible.
    """
    weights = question.settings.get("model_path", "")
    if weights and not Path(weights).exists():
        raise NotCounted(
            f"model_path={weights} is not on this machine: name a preset of its shape, as "
            "--set run.config.model=vit_huge, with --set run.config.model_path=null [SL-count-no-weights]"
        )
    env = _drop_settings(os.environ) | {
        f"TRAINER_{name.upper()}": value for name, value in question.settings.items()
    }
    if absent := explain_trainer(sys.executable, env):
        raise NotCounted(f"{absent} [SL-count-no-trainer]")
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "operations.json"
        _run_trainer(question, part, env)
        file = read_operations_file(part)
        place = cache / f"{file.model.replace('/', '_')}-{file.strategy}-{file.key}.json"
        whole = place.with_name(f".{place.name}-{os.getpid()}.part")  # the place may be read meanwhile
        try:
            cache.mkdir(parents=True, exist_ok=True)
            whole.write_bytes(part.read_bytes())
            whole.replace(place)
        except OSError as failure:
            _tell_unkept(cache, failure.strerror or str(failure))
        finally:
            with suppress(OSError):
                whole.unlink(missing_ok=True)
        return file.model_copy(update={"path": place})


def _run_trainer(question: Question, part: Path, env: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "trainer.count", "--ranks", str(question.ranks)]
    command += ["--per-node", str(question.per_node), "--operations", str(part)]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        said = []
        for line in running.stderr:
            said.append(line.strip())
            print(f"  {line.rstrip()}", file=sys.stderr, flush=True)
    if running.returncode:
        words = [line for line in said if "TRAINER_" in line or "Error" in line] or said[-1:]
        kind = CountRefused if running.returncode == REFUSED else NotCounted
        told = "; ".join(words) or f"the trainer ended with {running.returncode} [SL-count-failed]"
        raise kind(_name_typed(question, told))


def _drop_settings(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith("TRAINER_")}


def _name_typed(question: Question, told: str) -> str:
    """Return the trainer's message with each setting as typed."""
    return name_settings(told) if question.whole else VARIABLE.sub(lambda found: found[1].lower(), told)


@functools.cache
def _tell_unkept(cache: Path, reason: str) -> None:
    """Warn once that a count cannot be kept."""
    print(
        f"{cache}: cannot be written ({reason}), so counts are not kept; XDG_CACHE_HOME sets another place",
        file=sys.stderr,
    )

"""Answer questions from files, by counting, or with the reason why there is no answer.

`answer` serves the verb; `foretell` returns one sentence for the verbs that start runs.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stratlab import UserError
from stratlab.predict import FIELDS, Prediction, predict
from stratlab.predict.advising import CANNOT_START, NOT_KNOWN, Look, advise, advise_room, find_idle
from stratlab.predict.asking import ask_of_pods
from stratlab.predict.counting import (
    CountRefused,
    NotCounted,
    count_operations,
    fill_question,
)
from stratlab.progress import format_seconds
from stratlab.run_settings import SETTINGS
from stratlab.trainer_program import VARIABLE, name_settings
from stratlab_spec.memory import DEVICE_GIB
from stratlab_spec.memory.prediction import Verdict
from stratlab_spec.memory.profiles import (
    FOLDER,
    GIB,
    OperationsFile,
    Question,
    find_operations,
    read_operations,
)
from stratlab_spec.memory.simulated import CannotStart, simulate_run
from stratlab_spec.memory.step_prediction import NotRecorded
from stratlab_spec.models.decoder_config import SHAPES, size_problems
from stratlab_spec.models.decoder_json import vit_size_problems
from stratlab_spec.models.model_specs import VIT, read_vit_shape
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.wording import spell_options

CODE = re.compile(r" \[SL-[a-z0-9-]+\]")


@dataclass(frozen=True)
class Unknown:
    """A question without an answer, and why. `countable`: a count would probably answer it."""

    question: Question
    reason: str
    verdict: str = NOT_KNOWN
    countable: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return the keys of a prediction, null for what is not known, and the reason."""
        settings = self.question.settings
        return dict.fromkeys(FIELDS) | {
            "name": self.question.name,
            "strategy": settings.get("strategy"),
            "model": settings.get("model_path") or settings.get("model"),
            "ranks": self.question.ranks,
            "micro_batch_size": self.question.rows,
            "verdict": self.verdict,
            "reason": self.reason,
        }


def answer(
    questions: Sequence[Question],
    files: Sequence[OperationsFile],
    device_gib: float,
    cache: Path | None,
    allowed: Sequence[str] = (),
    counted: Sequence[OperationsFile] = (),
) -> list[Prediction | Unknown]:
    """Return the answers in the order of the questions; of nd only one for each layout.

    Args:
        files: go before recorded steps.
        counted: answer where there are no recorded steps.
        cache: folder for new counts; None = do not count.
        allowed: further changes that advice may propose (`remedies.ALLOWED`).

    Raises:
        UserError: the trainer rejects all of them.
    """
    known = list(counted)
    found = [answer_one(question, files, device_gib, known) for question in questions]
    if cache is not None:
        _count(found, known, device_gib, cache)
    refused = [one for one in found if isinstance(one, Unknown) and one.verdict == CANNOT_START]
    if refused and len(refused) == len(found):
        alike: dict[str, list[str]] = {}
        for one in refused:
            alike.setdefault(one.reason, []).append(one.question.name)
        raise UserError("\n".join(f"{', '.join(names)}: {reason}" for reason, names in alike.items()))
    found = _drop_alike(found)
    look = look_up(files, device_gib, known)
    return [complete(one, look, allowed) if isinstance(one, Prediction) else one for one in found]


def _drop_alike(found: Sequence[Prediction | Unknown]) -> list[Prediction | Unknown]:
    """Drop numbers of dimensions of nd that lead to a layout of fewer."""
    kept: list[Prediction | Unknown] = []
    seen = set()
    for one in found:
        if isinstance(one, Prediction) and one.file.strategy == "nd" and not one.question.whole:
            layout = repr((sorted(one.file.axes.items()), dict(one.peak.causes)))
            if layout in seen:
                continue
            seen.add(layout)
        kept.append(one)
    return kept


def complete(one: Prediction, look: Look, allowed: Sequence[str] = ()) -> Prediction:
    """Add changes to try first if it does not fit, or leaves room for only one row."""
    if one.verdict is not Verdict.FITS:
        one = advise(one, look, allowed)
    elif one.largest <= 1:
        one = replace(one, advice=advise_room(one, look, allowed))
    return replace(one, idle=tuple(find_idle(one, look, allowed)))


def look_up(
    files: Sequence[OperationsFile], device_gib: float, counted: Sequence[OperationsFile] = ()
) -> Look:
    """Predict each question once."""
    known: dict[str, Prediction | str] = {}

    def look(question: Question) -> Prediction | str:
        key = repr((sorted(question.settings.items()), question.ranks, question.rows, question.per_node))
        if key not in known:
            found = answer_one(question, files, device_gib, counted)
            known[key] = found if isinstance(found, Prediction) else found.verdict
        return known[key]

    return look


def _count(
    found: list[Prediction | Unknown], files: list[OperationsFile], device_gib: float, cache: Path
) -> None:
    """Count runs that `files` do not answer; each count joins the files, and may also answer the next question."""
    asked = [
        place for place, one in enumerate(found) if isinstance(one, Unknown) and one.verdict == NOT_KNOWN
    ]
    began = time.monotonic()
    for done, place in enumerate(asked):
        question = found[place].question
        if isinstance(again := answer_one(question, (), device_gib, files), Prediction):
            found[place] = again
            continue
        left = (time.monotonic() - began) / done * (len(asked) - done) if done else 0
        number = f" ({done + 1} of {len(asked)}{f', {format_seconds(left)} left' if left else ''})"
        say = f"{question.name}: no file answers, so the trainer counts{number if len(asked) > 1 else ''}"
        print(say, file=sys.stderr, flush=True)
        try:
            file = count_operations(fill_question(question), cache)
        except NotCounted as reason:
            found[place] = Unknown(question, str(reason), countable=not isinstance(reason, CountRefused))
            continue
        files.append(file)
        found[place] = predict(question, file, device_gib)


def find_size_refusal(settings: Mapping[str, str]) -> str:
    """Return why no run can have these sizes, of settings as pods have them; "" = it can, or only the trainer knows.

    >>> find_size_refusal({"model": "vit_huge", "model_hidden": "1000", "model_heads": "16"})
    'model_hidden=1000: must be a multiple of heads=16, for example 992'
    """
    given = {name: settings.get(name, "0") for name in ("model_hidden", "model_heads", "model_kv_heads")}
    model = settings.get("model") or SETTINGS["model"]["default"]
    if (
        settings.get("model_path")
        or model not in {*VIT, *SHAPES}
        or not all(map(str.isdecimal, given.values()))
    ):
        return ""
    sizes = {name: int(text) for name, text in given.items()}
    if not any(sizes.values()):  # a preset's own
        return ""
    config = Config(run="sizes", model=model, dataset="synthetic").model_copy(update=sizes)
    shape = read_vit_shape(config)
    problems = vit_size_problems(shape.hidden, shape.heads, config) if shape else size_problems(config)
    return CODE.sub("", spell_options("; ".join(problems), {name: name for name in sizes}))


def answer_one(
    question: Question,
    files: Sequence[OperationsFile],
    device_gib: float,
    counted: Sequence[OperationsFile] = (),
) -> Prediction | Unknown:
    """Answer from one of `files`, else from recorded steps, else from one of `counted`."""
    if refusal := find_size_refusal(question.settings):
        return Unknown(question, f"{refusal} [SL-predict-sizes]", CANNOT_START)
    file = find_operations(files, question)
    if file is not None and (refusal := question.find_refusal(file.share(question.ranks))):
        return Unknown(question, f"{refusal} [SL-predict-batch]", CANNOT_START)
    try:
        return predict(question, file or simulate_run(question), device_gib)
    except CannotStart as failure:
        return Unknown(question, name_refused(question, str(failure)), CANNOT_START)
    except NotRecorded as failure:
        if file := find_operations(counted, question):
            return predict(question, file, device_gib)
        return Unknown(
            question,
            f"no recorded steps for {name_refused(question, str(failure))} [SL-predict-unrecorded]",
        )


def name_refused(question: Question, told: str) -> str:
    """Return a sentence about settings with their names as the user types them."""
    return name_settings(told) if question.whole else VARIABLE.sub(lambda found: found[1].lower(), told)


def foretell(name: str, env: Mapping[str, str], results: Path | None = None) -> str:
    """Return one sentence about a run's memory; "" if no operations file answers. It does not count.

    `fsdp: foreseen for GPUs of 79.2 GiB: too near full, 70.10 GiB each, most of it activations (31.2); ...`

    Args:
        env: of the run's training pods, with PET_NNODES and PET_NPROC_PER_NODE as an operator injects them.
        results: folder of results on this machine, which may have files of its own; pods look there too.
    """
    nodes, per_node = env.get("PET_NNODES", "1").split(":")[0], env.get("PET_NPROC_PER_NODE", "1")
    if not (nodes.isdecimal() and per_node.isdecimal()):
        return ""  # the trainer refuses them
    try:
        question = ask_of_pods(name, env, int(nodes), int(per_node))
    except UserError:  # another module rejects that setting, with its own message
        return ""
    settings = question.settings
    if settings.get("memory_forecast") == "false" or settings.get("mode", "train") != "train":
        return ""
    folders = [results / FOLDER] if results else []
    files = list(read_operations(folders, lambda wrong: None))  # pods log them, and continue in the same way
    one = answer_one(question, files, DEVICE_GIB)
    if isinstance(one, Unknown):
        return ""
    found = complete(one, look_up(files, DEVICE_GIB))
    verdict = f"{found.verdict}, {found.show(found.needs_gib)} GiB each"
    told = f"{name}: foreseen for GPUs of {DEVICE_GIB:g} GiB: {verdict}"
    if found.verdict is Verdict.FITS:
        return told
    most = max(found.peak.causes, key=lambda cause: found.peak.causes[cause])
    return f"{told}, most of it {most} ({found.peak.causes[most] / GIB:.2f}); {found.advice}"

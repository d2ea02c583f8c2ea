"""Predictions as tables on a terminal: the verdicts, and what the memory is for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from stratlab.predict.answering import NOT_KNOWN, Unknown
from stratlab.predict.count_command import group_by_command, name_count
from stratlab.predict.device_memory import GATE, GIB, Verdict
from stratlab.predict.prediction import Prediction
from stratlab.predict.question import Question
from stratlab.tables.image_sizes import say_image_size

COLOURS = {Verdict.FITS: "green", Verdict.NEAR_FULL: "yellow", Verdict.NOT: "red"}
SMALLEST_GIB = 0.005
"""A cause below it has no column, unless it is more than LEAST_SHARE of a small model's peak."""
LEAST_SHARE = 0.02
COLUMNS = ("run", "ranks", "micro-batch", "verdict", "on device GiB", "peak GiB", "largest micro-batch")
MOST_COMMANDS = 5
WITH_SEQUENCE = (4, 5)
"""Numbers of dimensions whose layouts divide the sequence over the axis tp, too (docs/llm.md)."""
ADVICE = "what to change first, or what is missing"


def build_table(answers: Sequence[Prediction | Unknown]) -> Table:
    """One line per question: verdict, GiB on the device, peak of the engines, largest micro-batch."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    told = any(isinstance(one, Unknown) or one.advice for one in answers)
    for name in (*COLUMNS, *((ADVICE,) if told else ())):
        left = name in ("run", "verdict", ADVICE)
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    for one in answers:
        question = one.question
        asked = (question.name, str(question.ranks), str(question.rows))
        if isinstance(one, Unknown):
            table.add_row(*asked, Text(one.verdict, style="bold"), "", "", "", one.reason)
            continue
        sizes = (one.show(one.needs_gib), one.show(one.peak.total / GIB), one.say_largest())
        advice = (one.advice,) if told else ()
        table.add_row(*asked, Text(str(one.verdict), style=COLOURS[one.verdict]), *sizes, *advice)
    return table


def build_causes(answers: Sequence[Prediction | Unknown]) -> Table:
    """GiB by cause at the peak; causes that nobody holds are left out."""
    known = [one for one in answers if isinstance(one, Prediction)]
    most = max((one.peak.total for one in known), default=0)
    smallest = min(SMALLEST_GIB * GIB, LEAST_SHARE * most)
    digits = 2 if most >= 0.1 * GIB else 4
    causes = [
        cause
        for cause in dict.fromkeys(cause for one in known for cause in one.peak.causes)
        if any(one.peak.causes.get(cause, 0) >= smallest for one in known)
    ]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", *causes, "in all"):
        table.add_column(name, justify="left" if name == "run" else "right")
    for one in known:
        cells = [f"{one.peak.causes.get(cause, 0) / GIB:.{digits}f}" for cause in causes]
        bound = "<= " if one.is_upper_bound else ""
        table.add_row(one.question.name, *cells, f"{bound}{one.peak.total / GIB:.{digits}f}")
    return table


def explain_lines(answers: Sequence[Prediction | Unknown], device_gib: float) -> Iterator[str]:
    """Where the numbers come from."""
    known = [one for one in answers if isinstance(one, Prediction)]
    yield (
        f"device {device_gib:g} GiB, gate {GATE:.0%}: {GATE * device_gib:.2f} GiB; counted on fake tensors, no device "
        "took part; CUDA's context, communicators and the allocator's reserve are constants (docs/predict.md)"
    )
    yield from _explain_different_ranks([one.question for one in answers])
    assumed: dict[str, list[str]] = {}
    for one in known:
        if not one.question.whole:
            assumed.setdefault(_assumed(one), []).append(one.question.name)
    for told, names in assumed.items():
        yield f"{', '.join(names)}: {told}" if len(assumed) > 1 else told
    if assumed:
        yield from _explain_ranks(known)
        yield "for another batch or one strategy alone: --set micro_batch_size=N, --set strategy=NAME"
    for one in (one for one in known if one.host.total):
        gib, ranks = one.host.total / GIB, one.question.per_node
        node = f", {gib * ranks:.2f} of its node" if ranks else ""
        yield f"{one.question.name}: at least {gib:.2f} GiB of each rank in host memory{node} (docs/memory.md)"
    yield from _explain_beyond(known)
    if any(one.is_upper_bound for one in known):
        yield "<=: counted with several micro-batches in a step; the run has one, and holds no more"
    yield from _explain_idle(known)
    groups = group_by_command(_list_unknown(answers))
    for first, *alike in groups[:MOST_COMMANDS]:
        others = ", ".join(one.settings["strategy"] for one in alike)
        more = f" (likewise with strategy={others}, into a file of its own)" if others else ""
        yield f"where no file answers: `{name_count(first, alike)}` counts one{more}, --operations FOLDER reads it"


def _explain_idle(known: Sequence[Prediction]) -> Iterator[str]:
    """What advice was allowed to propose in vain, a line for each reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in known:
        for found in one.idle:
            groups.setdefault(found, []).append(one.question.name)
    for (name, reason), names in groups.items():
        yield f"--allow {name} changes nothing of {', '.join(names)}: {reason}"


def count_unknown(answers: Sequence[Prediction | Unknown]) -> int:
    """How many a count would answer."""
    return len(_list_unknown(answers))


def _list_unknown(answers: Sequence[Prediction | Unknown]) -> list[Question]:
    unknown = [one for one in answers if isinstance(one, Unknown) and one.verdict == NOT_KNOWN]
    return [one.question for one in unknown if one.countable]


def _explain_different_ranks(questions: Sequence[Question]) -> Iterator[str]:
    """Of charts: some set nodes of their own, which nobody typed."""
    if len({one.ranks for one in questions}) < 2:
        return
    told = [
        f"{one.name} {one.ranks}"
        + (
            f" ({nodes} nodes of {one.per_node})"
            if one.per_node and (nodes := one.ranks // one.per_node) > 1
            else ""
        )
        for one in questions
    ]
    yield (
        f"not the same number of ranks: {', '.join(told)}; a chart sets run.nodes unless it is given, "
        "--set run.nodes=N makes them alike"
    )


def _explain_beyond(known: Sequence[Prediction]) -> Iterator[str]:
    """Of micro-batches larger than any that was counted."""
    beyond = [one for one in known if max(one.largest, one.question.rows) > one.counted_rows]
    if beyond:
        counted = "/".join(map(str, sorted({one.counted_rows for one in beyond})))
        yield (
            f"micro-batches were counted up to {counted}: beyond, the line through the last two counts goes on, "
            "which is an estimate"
        )


def _explain_ranks(known: Sequence[Prediction]) -> Iterator[str]:
    """How the ranks are arranged, where that is more than one axis of data."""
    arranged = {}
    for one in known:
        axes = [f"{name}={size}" for name, size in one.file.axes.items() if size > 1]
        if one.file.settings.get("dimensions") in WITH_SEQUENCE and one.file.axes.get("tp", 1) > 1:
            axes.append("+sp")
        node = f", {one.file.per_node} ranks on a node" if one.file.per_node else ""
        if len(axes) > 1 or node:
            arranged[one.question.name] = " ".join(axes) + node
    if arranged:
        yield "; ".join(f"{name}: {told}" for name, told in arranged.items())
    by_nodes = [one for one in known if one.file.per_node and not one.question.per_node]
    if by_nodes:
        names = ", ".join(one.question.name for one in by_nodes)
        held = "/".join(map(str, sorted({one.file.per_node for one in by_nodes})))
        yield (
            f"how many GPUs a node has was not said: {held}, as counted, of {names}, which alone depend on it; "
            "--gpus-per-node N asks for another number"
        )


def _assumed(one: Prediction) -> str:
    told = (
        "seq_len",
        "image_size",
        "precision",
        "packing",
        "activation_checkpointing",
        "lora_rank",
        "optimizer",
        "offload",
    )
    held = {name: value for name, value in one.file.settings.items() if (name, value) != ("offload", "none")}
    if "image_size" in held:
        held["image_size"] = say_image_size(one.file.model, held["image_size"])
    settings = [f"{name}={_say(held[name])}" for name in told if name in held]
    images = f", {one.file.labels} classes, {one.file.channels} channels" if one.file.labels else ""
    return f"counted with {', '.join(settings)}{images}"


def _say(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""Predictions as a person reads them: what to take first or change, tables on a terminal, one page.

conclude           the last sentence
build_table, build_causes    verdicts, and what the memory is for
explain_lines      where the numbers come from
build_prediction_page        bars by cause, the verdicts as a table
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup
from rich.table import Table
from rich.text import Text

from stratlab.drawing.charts import stacked_bars
from stratlab.drawing.page import Column, Section, badge, build_page, html_table, paragraph
from stratlab.predict.answering import NOT_KNOWN, Unknown
from stratlab.predict.counting import group_by_command, name_count
from stratlab.predict.prediction import Prediction
from stratlab.predict.remedies import WHY
from stratlab.run_settings import name_model
from stratlab_spec.memory.prediction import GATE, Verdict
from stratlab_spec.memory.profiles import GIB, Question, describe_setting
from stratlab_spec.settings.wording import as_text

ORDER = {strategy: place for place, strategy in enumerate(WHY)}

NOT_ESTIMATED = "Time and cost are not estimated"


def conclude(answers: Sequence[Prediction | Unknown]) -> str:
    """The sentences; "" = nothing is known of anything."""
    known = [one for one in answers if isinstance(one, Prediction)]
    fitting = [one for one in known if one.verdict is Verdict.FITS]
    if fitting:
        return _say_first(fitting, len(answers), len(known))
    if not known:
        return ""
    nearest = min(known, key=lambda one: one.needs_gib)
    of_known = "" if len(known) == len(answers) else f" of the {len(known)} that are known"
    who = f"{nearest.question.name} {nearest.verdict}" if len(answers) == 1 else f"none{of_known} fits"
    least = "" if len(answers) == 1 else f"; {nearest.question.name} needs least"
    return f"in short: {who}{least} ({nearest.say_needs()}). Change first: {nearest.advice}. {NOT_ESTIMATED}"


def _say_first(fitting: Sequence[Prediction], asked: int, known: int) -> str:
    """Of those with room for more than one row the one that sends least; where there is none, what would make room."""
    ordered = sorted(fitting, key=lambda one: ORDER.get(one.file.strategy, len(ORDER)))
    roomy = [one for one in ordered if one.largest > 1]
    if asked == 1 or len(fitting) == 1:
        first = fitting[0]
        of_known = "" if known == asked else f" of the {known} that are known"
        only = "" if asked == 1 else "only "
        said = (
            f"in short: {only}{first.question.name}{of_known if only else ''} fits ({first.say_needs()}), with a "
            f"micro-batch up to {first.say_largest()}"
        )
    else:
        names = ", ".join(f"{one.question.name} ({one.say_needs()})" for one in fitting)
        said = f"in short: {names} fit"
    if not roomy:
        room = next((one.advice for one in ordered if one.advice), "nothing that was counted leaves room")
        return f"{said}. No micro-batch above 1 fits: {room}. {NOT_ESTIMATED}"
    first = roomy[0]
    if len(fitting) == 1 or asked == 1:
        return f"{said}. {NOT_ESTIMATED}"
    why = f": {WHY[first.file.strategy]}" if first.file.strategy in WHY else ""
    narrow = [one.question.name for one in ordered[: ordered.index(first)]]
    less = f"; {', '.join(narrow)} would send less, but no micro-batch above 1 fits there" if narrow else ""
    room = f"it has room for a micro-batch of {first.say_largest()}"
    return f"{said}. Take {first.question.name} first{why}, and {room}{less}. {NOT_ESTIMATED}"


COLOURS = {Verdict.FITS: "green", Verdict.NEAR_FULL: "yellow", Verdict.NOT: "red"}
SMALLEST_GIB = 0.005
"""A cause below it has no column, unless it is more than LEAST_SHARE of a small model's peak."""
LEAST_SHARE = 0.02
COLUMNS = ("run", "ranks", "micro-batch", "verdict", "on device GiB", "peak GiB", "largest micro-batch")
MOST_COMMANDS = 5
WITH_SEQUENCE = (4, 5)
"""Numbers of dimensions whose layouts divide the sequence over the axis tp, too (docs/llm.md)."""
ASSUMED = (
    *("seq_len", "image_size", "precision", "packing", "activation_checkpointing", "lora_rank"),
    *("optimizer", "offload"),
)
"""Settings of a file that a reader is told, in their order."""
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
    groups = group_by_command(list_uncounted(answers))
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


def list_uncounted(answers: Sequence[Prediction | Unknown]) -> list[Question]:
    """Those that a count would answer."""
    unknown = [one for one in answers if isinstance(one, Unknown) and one.verdict == NOT_KNOWN]
    return [one.question for one in unknown if one.countable]


def _explain_different_ranks(questions: Sequence[Question]) -> Iterator[str]:
    """Of charts: some set nodes of their own, which nobody typed."""
    if len({one.ranks for one in questions}) < 2:
        return
    ranks = []
    for one in questions:
        nodes = one.ranks // one.per_node if one.per_node else 1
        ranks.append(f"{one.name} {one.ranks}" + (f" ({nodes} nodes of {one.per_node})" if nodes > 1 else ""))
    yield (
        f"not the same number of ranks: {', '.join(ranks)}; a chart sets run.nodes unless it is given, "
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
    held = {name: value for name, value in one.file.settings.items() if (name, value) != ("offload", "none")}
    settings = [
        f"{name}={describe_setting(one.file.model, name, held[name]) if name == 'image_size' else as_text(held[name])}"
        for name in ASSUMED
        if name in held
    ]
    images = f", {one.file.labels} classes, {one.file.channels} channels" if one.file.labels else ""
    return f"counted with {', '.join(settings)}{images}"


KINDS = {Verdict.FITS: "good", Verdict.NEAR_FULL: "warn", Verdict.NOT: "bad"}
BESIDE = "context, communicators, reserve"
PAGE_COLOURS = {
    "parameters": 0, "gathered": 8, "low-precision copies": 13, "gradients": 1, "gradient buckets": 9,
    "optimizer state": 2, "master copies": 10, "activations": 3, "masks": 11, "logits and loss": 5, "teacher": 4,
    "data": 6, "other": 7, BESIDE: 15,
}  # fmt: skip
"""What belongs together has one colour, dark and light."""
PAGE_COLUMNS = (
    *("run", "ranks", Column("rows", "micro-batch"), "verdict"),
    Column("needs", "on the device", "GiB", right=True),
    Column("peak", "peak of the engines", "GiB", right=True),
    Column("largest", "largest micro-batch"),
    Column("first", "what to change first"),
)


def build_prediction_page(answers: Sequence[Prediction | Unknown], device_gib: float) -> str:
    """The page as text."""
    known = [one for one in answers if isinstance(one, Prediction)]
    bars = {
        f"{one.question.name}, {one.question.ranks}": {
            **{cause: size / GIB for cause, size in one.peak.causes.items()},
            BESIDE: one.needs_gib - one.peak.total / GIB,
        }
        for one in known
    }
    limit = f"A device has {device_gib:g} GiB; up to {GATE * device_gib:.2f} GiB is below the gate."
    origin = " ".join(f"{line[:1].upper()}{line[1:]}." for line in explain_lines(answers, device_gib))
    sections = [
        Section(
            "Will it fit?",
            paragraph(conclude(answers)) + html_table([_row(one) for one in answers], PAGE_COLUMNS),
        ),
        Section(
            "What the memory is for", paragraph(limit) + stacked_bars(bars, "GiB", PAGE_COLOURS, digits=2)
        ),
    ]
    names = dict.fromkeys(name_model(one.question.settings) for one in answers)
    return build_page(f"Memory before the run: {', '.join(filter(None, names))}", origin, sections)


def _row(one: Prediction | Unknown) -> dict[str, Any]:
    question = one.question
    row: dict[str, Any] = {"run": question.name, "ranks": question.ranks, "rows": question.rows}
    if isinstance(one, Unknown):
        return {**row, "verdict": badge(one.verdict, "plain"), "first": one.reason}
    verdict: Markup = badge(str(one.verdict), KINDS[one.verdict])
    sizes = {"needs": one.show(one.needs_gib), "peak": one.show(one.peak.total / GIB)}
    return {**row, "verdict": verdict, **sizes, "largest": one.say_largest(), "first": one.advice}

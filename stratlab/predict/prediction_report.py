"""Predictions as a person reads them: what to take first or change, and one screen of a terminal.

conclude        the verdict
explain_lines   where the numbers come from
build_screen    the verdict, a table with bars, and notes on the rows
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.bar import Bar
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stratlab.predict import MOST_ROWS, Prediction
from stratlab.predict.advising import CANNOT_START, NOT_KNOWN, ORDER, choose_remedy, say_whole
from stratlab.predict.answering import Unknown
from stratlab.predict.counting import group_by_command, name_count
from stratlab.predict.remedies import WHY
from stratlab.progress import build_lines
from stratlab_spec.memory.prediction import GATE, Verdict
from stratlab_spec.memory.profiles import GIB, OperationsFile, Question, describe_setting
from stratlab_spec.memory.simulated import Simulated
from stratlab_spec.settings.wording import as_text

RULE = "it sends least among the strategies with room for a micro-batch of at least 2"
ACCURACY = "Error against measured peaks: within 1 % on 51 of 52 kinds of runs on one GPU"
NOT_ESTIMATED = "Times: --gpu NAME"


def conclude(answers: Sequence[Prediction | Unknown], timed: bool = False) -> str:
    """Return the verdict in sentences; "" without any answer.

    Args:
        timed: times follow, which say what to take first.
    """
    known = [one for one in answers if isinstance(one, Prediction)]
    fitting = [one for one in known if one.verdict is Verdict.FITS]
    if not known:
        return ""
    verdicts = Counter(one.verdict for one in answers if isinstance(one, Unknown))
    unknown = "".join(f", {count} {verdict}" for verdict, count in verdicts.items())
    times = "" if timed else f". {NOT_ESTIMATED}"
    if fitting:
        return f"{_say_first(fitting, len(answers), unknown, timed)}{times}"
    nearest = min(known, key=lambda one: one.needs_gib)
    name, needs = nearest.question.name, nearest.say_needs()
    none = f"None of {len(answers)} fits{unknown}; {name} needs least ({needs})"
    said = f"{name} {nearest.verdict} ({needs})" if len(answers) == 1 else none
    return f"{said}. Change first: {_say_change(known, nearest)}{times}"


def _say_change(known: Sequence[Prediction], nearest: Prediction) -> str:
    """Return the change that leads to the strategy that sends least; without any that fits, what may help `nearest`."""
    one = choose_remedy(known)
    if one is None or len(known) == 1:
        return nearest.advice
    assert one.remedy
    return f"{one.question.name}: {one.advice}" if one.question.whole else say_whole(one, one.remedy)


def find_first(answers: Sequence[Prediction | Unknown]) -> Prediction | None:
    """Return the run that sends least of those with room for several rows; None without such a run."""
    known = (one for one in answers if isinstance(one, Prediction) and one.verdict is Verdict.FITS)
    return next((one for one in _order(known) if one.largest > 1), None) if len(answers) > 1 else None


def _order(fitting: Iterable[Prediction]) -> list[Prediction]:
    return sorted(fitting, key=lambda one: ORDER.get(one.file.strategy, len(ORDER)))


def _say_first(fitting: Sequence[Prediction], asked: int, unknown: str, timed: bool) -> str:
    """Recommend the run that sends least of those with room for several rows, unless times do; without any such run
    name changes that make room.
    """
    ordered = _order(fitting)
    roomy = [one for one in ordered if one.largest > 1]
    said = f"{len(fitting)} of {asked} fit{'s' * (len(fitting) == 1)}{unknown}"
    if len(fitting) == 1:
        (only,) = fitting
        who = f"{only.question.name} fits" if asked == 1 else f"{said}: {only.question.name}"
        said = f"{who} ({only.say_needs()}), with a micro-batch up to {only.say_largest()}"
    if not roomy:
        room = next((one.advice for one in ordered if one.advice), "no counted change makes room")
        return f"{said}. No micro-batch above 1 fits: {room}"
    if len(fitting) == 1 or timed:
        return said
    first = roomy[0]
    why = f": {RULE}; {WHY[first.file.strategy]}" if first.file.strategy in WHY else ""
    narrow = [one.question.name for one in ordered[: ordered.index(first)]]
    fits = "fit" if len(narrow) > 1 else "fits"
    less = f". {', '.join(narrow)} {fits} a micro-batch of 1 only" if narrow else ""
    room = f"it has room for a micro-batch of {first.say_largest()} ({first.say_needs(first.largest)})"
    return f"{said}. Take {first.question.name} first{why}, and {room}{less}"


MOST_COMMANDS = 5
WITH_SEQUENCE = (4, 5)
"""Numbers of dimensions whose layouts divide the sequence over the axis tp, too (docs/llm.md)."""
ASSUMED = (
    *("seq_len", "image_size", "precision", "packing", "activation_checkpointing", "lora_rank"),
    *("optimizer", "offload"),
)
"""Settings of a count that the answer names, in this order."""


def explain_lines(answers: Sequence[Prediction | Unknown], device_gib: float) -> Iterator[str]:
    """Yield the origin of the numbers."""
    known = [one for one in answers if isinstance(one, Prediction)]
    yield (
        f"limit: {GATE * device_gib:.2f} of {device_gib:g} GiB ({GATE:.0%}). Steps of the trainer's engines, recorded "
        "without a GPU, are simulated for these sizes. Fixed amounts for CUDA's context, communicators and the "
        f"allocator's reserve are added. {ACCURACY}; several GPUs are not confirmed (docs/predict.md)"
    )
    yield from dict.fromkeys(one.question.origin for one in answers if one.question.origin)
    yield from _explain_different_ranks([one.question for one in answers])
    assumed: dict[str, list[str]] = {}
    for one in known:
        if not one.question.whole:
            assumed.setdefault(_assumed(one), []).append(one.question.name)
    for told, names in assumed.items():
        yield f"{', '.join(names)}: {told}" if len(assumed) > 1 else told
    if assumed:
        yield from _explain_ranks(known)
        yield "for another batch: --set micro_batch_size=N; for one strategy: --set strategy=NAME"
    for one in (one for one in known if one.host.total):
        gib, ranks = one.host.total / GIB, one.question.per_node
        node = f", all ranks of a node {gib * ranks:.2f} GiB" if ranks else ""
        yield f"{one.question.name}: each rank needs at least {gib:.2f} GiB of host memory{node} (docs/memory.md)"
    if any("lora_rank=" in one.advice or one.file.settings.get("lora_rank") for one in known):
        yield "with lora_rank the frozen weights stay fp32"
    yield from _explain_beyond(known)
    bounds = [one for one in known if one.is_upper_bound]
    if any(isinstance(one.file, OperationsFile) for one in bounds):
        yield "<= marks an upper bound: the count had several micro-batches per step, the run has one"
    if any(isinstance(one.file, Simulated) for one in bounds):
        yield "<= marks an upper bound: compiled runs hold up to 2 % more than eager ones, and copies of whole weights"
    yield from _explain_idle(known)


def list_commands(answers: Sequence[Prediction | Unknown]) -> Iterator[str]:
    """Yield the commands that count runs without a file, for the first MOST_COMMANDS kinds of runs."""
    groups = group_by_command(list_uncounted(answers))
    for first, *alike in groups[:MOST_COMMANDS]:
        others = ", ".join(one.settings["strategy"] for one in alike)
        more = f" (repeat it with strategy={others} and another file)" if others else ""
        yield f"to count a missing run: `{name_count(first, alike)}`{more}; --operations FOLDER reads the file"


def _explain_idle(known: Sequence[Prediction]) -> Iterator[str]:
    """Yield the changes that advice was allowed to propose and did not, a line for each reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in known:
        for found in one.idle:
            groups.setdefault(found, []).append(one.question.name)
    for (name, reason), names in groups.items():
        yield f"--allow {name} has no effect on {', '.join(names)}: {reason}"


def list_uncounted(answers: Sequence[Prediction | Unknown]) -> list[Question]:
    """Return the questions that a count would answer."""
    unknown = [one for one in answers if isinstance(one, Unknown) and one.verdict == NOT_KNOWN]
    return [one.question for one in unknown if one.countable]


def _explain_different_ranks(questions: Sequence[Question]) -> Iterator[str]:
    """Explain different ranks: some charts set a number of nodes that the user has not typed."""
    if len({one.ranks for one in questions}) < 2:
        return
    ranks = []
    for one in questions:
        nodes = one.ranks // one.per_node if one.per_node else 1
        ranks.append(f"{one.name} {one.ranks}" + (f" ({nodes} nodes of {one.per_node})" if nodes > 1 else ""))
    yield (
        f"the numbers of ranks differ: {', '.join(ranks)}. Charts have different defaults of run.nodes; "
        "--set run.nodes=N sets one value for all"
    )


def _explain_beyond(known: Sequence[Prediction]) -> Iterator[str]:
    """Explain micro-batches larger than any that was counted."""
    beyond = [one for one in known if max(one.largest, one.question.rows) > one.counted_rows]
    if beyond:
        counted = "/".join(map(str, sorted({one.counted_rows for one in beyond})))
        yield f"micro-batches above {counted} are estimates: a straight line through the two largest counts"


def _explain_ranks(known: Sequence[Prediction]) -> Iterator[str]:
    """Yield the arrangement of the ranks, if it is more than one axis of data."""
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


def _assumed(one: Prediction) -> str:
    left_out = {"image_size"} if "seq_len" in one.question.settings else {"seq_len", "packing"}
    held = {name: value for name, value in one.file.settings.items() if (name, value) != ("offload", "none")}
    held |= {"precision": "bf16"} if held.get("precision") == "auto" else {}  # as on a current GPU
    settings = [
        f"{name}={describe_setting(one.file.model, name, held[name]) if name == 'image_size' else as_text(held[name])}"
        for name in ASSUMED
        if name in held and name not in left_out
    ]
    images = f", {one.file.labels} classes, {one.file.channels} channels" if one.file.labels else ""
    return f"with {', '.join(settings)}{images}"


Answers = Sequence[Prediction | Unknown]
COLOURS = {Verdict.FITS: "green", Verdict.NEAR_FULL: "yellow", Verdict.NOT: "red"}
VERDICTS = (*map(str, COLOURS), CANNOT_START, NOT_KNOWN)
ROOMY = 110
"""Columns from which on there are longer bars and two causes."""
MOST_LINES = 4
"""Lines of one kind, below the table; --json has all."""
BEYOND = "~"
UNFIT = {"SL-hpz-one-node": "several nodes", "SL-nd-five-dimensions-dense": "experts"}
"""Code of a refusal -> what a strategy needs that no user asked for by name."""
TAKE = "◀ first"


def build_screen(
    answers: Answers, device_gib: float, width: int, fewest: str = "", timed: bool = False
) -> Group:
    """Return the output of `stratlab predict`, on a terminal of `width` columns.

    Args:
        fewest: from `find_fewest`.
        timed: times follow.
    """
    verdict = Text(conclude(answers, timed) or "Nothing is known of what was asked", style="bold")
    return Group(
        verdict,
        build_table(answers, device_gib, width, None if timed else find_first(answers)),
        build_lines(_list_notes(answers, device_gib, fewest)),
    )


def build_table(answers: Answers, device_gib: float, width: int, first: Prediction | None) -> Table:
    """Return one line per question, by verdict, then by the largest micro-batch; shared values have no column.

    Args:
        first: the run to mark.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("run", overflow="fold")
    facts = {
        "ranks": {one.question.name: one.question.ranks for one in answers},
        "micro-\nbatch": {one.question.name: one.question.rows for one in answers},
    }
    facts = {name: values for name, values in facts.items() if len({*values.values()}) > 1}
    for fact in facts:
        table.add_column(fact, justify="right")
    table.add_column("verdict", no_wrap=True)
    rows = {one.question.rows for one in answers}
    at = f",\nmicro-\nbatch {rows.pop()}" if len(rows) == 1 else ""
    table.add_column(f"GiB of\n{device_gib:g}{at}", justify="right", no_wrap=True)
    table.add_column("largest\nmicro-batch", justify="right", no_wrap=True)
    table.add_column("largest\nmicro-batch" if width >= ROOMY else "largest", no_wrap=True)
    table.add_column("largest parts, GiB" if width >= ROOMY else "largest part, GiB", overflow="fold")
    most = max((one.largest for one in answers if isinstance(one, Prediction)), default=0) or 1
    for one in sorted(answers, key=_rank):
        name = Text(f"{one.question.name} {TAKE}", style="bold") if one is first else Text(one.question.name)
        row: list[RenderableType] = [name, *(str(values[one.question.name]) for values in facts.values())]
        if isinstance(one, Unknown):
            table.add_row(*row, one.verdict)
            continue
        causes = sorted(one.peak.causes.items(), key=lambda cause: -cause[1])[: 2 if width >= ROOMY else 1]
        bar = Bar(most, 0, one.largest, width=24 if width >= ROOMY else 8, color=COLOURS[one.verdict])
        largest = (
            f"{BEYOND * (one.largest > one.counted_rows)}{one.largest}{'+' * (one.largest == MOST_ROWS)}"
        )
        told = ", ".join(f"{cause} {one.show(size / GIB)}" for cause, size in causes)
        verdict = Text(str(one.verdict), style=COLOURS[one.verdict])
        table.add_row(*row, verdict, one.show(one.needs_gib), largest, bar, told)
    return table


def _rank(one: Prediction | Unknown) -> tuple[int, float, float]:
    if isinstance(one, Unknown):
        return VERDICTS.index(one.verdict), 0, 0
    return VERDICTS.index(str(one.verdict)), -one.largest, one.needs_gib


def _list_notes(answers: Answers, device_gib: float, fewest: str = "") -> Iterator[tuple[str, Text]]:
    """Yield (label, line): changes, missing files, the origin of the numbers, and further output."""
    changes: dict[str, list[str]] = {}
    missing: dict[str, list[str]] = {}
    unfit: list[str] = []
    for one in answers:
        if isinstance(one, Unknown):
            code = one.reason.rpartition("[")[2].rstrip("]")
            if "strategy" in one.question.typed or code not in UNFIT:
                missing.setdefault(one.reason, []).append(one.question.name)
            else:
                unfit.append(f"{one.question.name} needs {UNFIT[code]}")
        elif one.advice:
            changes.setdefault(one.advice, []).append(one.question.name)
    alone = len(answers) == 1  # its advice is in the verdict
    lines = iter(explain_lines(answers, device_gib))
    kinds = {
        "Change": [] if alone else [*_limit(changes)],
        "Fewest GPUs": [fewest] if fewest else [],
        "Missing": [*_limit(missing), *(["; ".join(unfit)] if unfit else [])],
        "Trust": [next(lines)],
        "Origin": [_say_common(answers), *lines],
        "All causes": ["--page FILE draws them, --json prints them"],
    }
    for label, sentences in kinds.items():
        for number, sentence in enumerate(sentences):
            yield "" if number else label, Text(sentence, style="dim" if label in ("Trust", "Origin") else "")


def _say_common(answers: Answers) -> str:
    ranks, rows = ({getattr(one.question, name) for one in answers} for name in ("ranks", "rows"))
    told = [f"{each} ranks" for each in ranks if len(ranks) == 1]
    told += [f"micro-batches of {each}" for each in rows if len(rows) == 1]
    beyond = any(isinstance(one, Prediction) and one.largest > one.counted_rows for one in answers)
    return ", ".join([*told, *([f"{BEYOND} marks an estimate"] if beyond else [])])


def _limit(groups: dict[str, list[str]]) -> Iterator[str]:
    for sentence, names in [*groups.items()][:MOST_LINES]:
        yield f"{', '.join(names)}: {sentence}"
    if len(groups) > MOST_LINES:
        yield f"{len(groups) - MOST_LINES} more: --json"

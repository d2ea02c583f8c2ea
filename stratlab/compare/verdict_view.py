"""The parts of the page that judge: the best runs, whether the runs may be compared, whether they compute the same.

build_lead        one sentence and a tile per question.
build_banner      the two most important caveats; `build_caveats` has all.
build_fairness, build_agreement, build_sources   the evidence for the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from stratlab.compare.answers import is_foreign, name_answers, say_answer
from stratlab.compare.attribution_view import NOTES
from stratlab.compare.fairness import FIRST_STEPS
from stratlab.compare.rules import Difference
from stratlab.compare.run_rows import read_rows
from stratlab.compare.search_ranking import say_search
from stratlab.compare.trust import REPEATED, list_doubts
from stratlab.compare.winners import ON_CPU, ONE_REPEAT
from stratlab.drawing import (
    Column,
    Columns,
    Section,
    badge,
    details,
    html_table,
    loud,
    note,
    paragraph,
    tile_row,
)
from stratlab.run_directory.files import is_number
from stratlab.run_directory.record import RunRecord
from stratlab.wording import capitalize, count_processes, format_count, format_fact, format_number, name_few
from stratlab_spec.schedule import RULE

Report = Mapping[str, Any]
"""report.json, with names of runs as shown."""
MOST_VALUES = 4
HASH = 40
"""Letters; longer words are cut."""
MOST_COLUMNS = 8
"""Runs side by side in a table."""
MOST_ANSWERS = 3
"""Of series and groups; their tables have all."""
MOST_PAIRS = 15
"""Six runs; up to here every pair is in one table."""
MOST_SHOWN = 6
"""Of more pairs those furthest apart."""
AGREES = {True: badge("agree", "good"), False: badge("disagree", "bad"), None: badge("unknown", "warn")}
MOST_CAVEATS = 2
MORE = {  # remark of the report -> text on the page
    ON_CPU: "Measured on CPU: times and their causes do not carry over to GPUs; memory, bytes sent and losses do",
    ONE_REPEAT: REPEATED.rstrip("."),
}


def build_lead(report: Report, runs: Sequence[RunRecord]) -> Markup:
    """Return one sentence, and a tile for each answer."""
    lead = Markup('<p class="lead">{}</p>').format(say_answer(report, runs))
    return lead + tile_row(name_answers(report, runs))


def build_banner(report: Report) -> list[str | Markup]:
    """Return the most important caveats."""
    return _list_caveats(report)[:MOST_CAVEATS]


def _list_caveats(report: Report) -> list[str | Markup]:
    """Return sentences, the most important first: doubts, runs that are left out, then facts about all numbers."""
    rows = read_rows(report)
    compared = {row.run: row.is_compared for row in rows}
    lost: list[str] = []
    of_runs: list[str] = []
    of_all: list[str] = []
    for remark in report["remarks"]:
        run = remark.split()[0].rstrip(",:")
        if run in compared:  # its name stays
            (of_runs if compared[run] else lost).append(f"{remark}.")
        else:
            of_all.append(f"{capitalize(MORE.get(remark, remark))}.")
    notes = dict.fromkeys(series["note"] for series in report["scaling"] if series["note"])
    of_all += [f"{capitalize(each)}." for each in notes]
    if unsettled := ", ".join(row.run for row in rows if row.warmup and not row.warmup["settled"]):
        of_all.append(f"Step times had not settled, or too few to tell: {unsettled}.")
    return [*(loud(doubt.sentence) for doubt in list_doubts(report)), *lost, *of_all, *of_runs]


def build_caveats(report: Report) -> Section:
    """Build all caveats of the numbers, and the origin of the runs."""
    headline = report["headline"]
    said = [describe_origin(report), f"{capitalize(headline['verdict'])}: {headline['reason']}."]
    said += [f"{answer}." for answer in headline["answers"][:MOST_ANSWERS]]
    if rest := headline["answers"][MOST_ANSWERS:]:
        said.append(f"{format_count(len(rest), 'more answer')}: summary.md.")
    said += [f"Left out: {entry['folder']} {entry['why']}." for entry in report["not_runs"]]
    said += [f"{'; '.join(say_search(report['search']))}."] * bool(report["search"])
    caveats = _list_caveats(report)
    html = Markup("").join(map(paragraph, [*said, *caveats]))
    return Section("Caveats and origin", html, folded=True, result=format_count(len(caveats), "caveat"))


def describe_origin(report: Report, versions: bool = True) -> str:
    """Return one line: hardware, backend, processes, steps, repeats, and versions unless shown elsewhere."""
    told = {name: either(value) for name, value in report["origin"].items() if name != "versions"}
    if is_foreign(report):
        return (
            f"Traces of another program, recorded on {told['hardware']}, "
            f"backend {told['backend']}, {told['world_size']} processes."
        )
    return (
        f"{describe_hardware(report['origin'])}, {told['steps']} steps of which {told['measured_steps']} are timed, "
        f"{_describe_repeats(report)}.{f' {describe_versions(report)}' if versions else ''}"
    )


def describe_hardware(origin: Mapping[str, Any]) -> str:
    """Return `Measured on 4 GPUs (cuda), backend nccl, 4 processes on 1 node`."""
    hardware, device, backend = (either(origin[name]) for name in ("hardware", "device", "backend"))
    # `2 processes on 1 node`, in how many pods; several numbers where the runs differ
    asked = (origin.get(name) for name in ("world_size", "nodes", "machines"))  # a kept tuning may be older
    processes = count_processes(*(value if value in (1, None) else either(value) for value in asked))
    return f"Measured on {hardware} ({device}), backend {backend}, {processes}"


def describe_work(report: Report) -> str:
    """Return one sentence about model and data; "" if they are unknown, as for traces of other programs."""
    model, dataset, samples, precision = (
        " / ".join(dict.fromkeys(format_fact(row[name]) for row in report["runs"] if row.get(name)))
        for name in ("model", "dataset", "global_batch_size", "precision")
    )
    if not model:
        return ""
    said = [f"{model} on {dataset}" if dataset else model]
    said += [f"{samples} samples a step"] * bool(samples)
    said += [f"precision {precision}"] * (precision not in ("", "auto"))
    return f"{', '.join(said)}."


def describe_versions(report: Report) -> str:
    """Return one line with the versions of the runs."""
    found = [f"{name} {either(version)}" for name, version in report["origin"]["versions"].items()]
    return f"{', '.join(found)}." if found else ""


def _describe_repeats(report: Report) -> str:
    points, variants = (report["search"] or {}).get("points"), report["noise"]["variants"]
    if points:
        counts = sorted({point["seeds"] for point in points})
    else:
        counts = sorted({len(variant) for variant in variants}) or [report["origin"]["repeats"]]
    span = counts[0] if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    if points:
        return f"{format_count(span, 'seed')} for each point of the search"
    many = len(variants) > len({row["strategy"] for row in report["runs"]})
    return f"{format_count(span, 'repeat')} per {'strategy and setting' if many else 'strategy'}"


def build_fairness(report: Report) -> Section:
    """Build the table of differences, and equal facts, folded; for many runs each value with its runs."""
    differences = [Difference(**entry) for entry in report["fairness"]["differences"]]
    matter = sum(entry.keeps_apart for entry in differences)
    same = [{"field": name, "value": _short(value)} for name, value in report["fairness"]["same"].items()]
    told = f"{len(same)} equal, {format_count(matter, 'difference')} that matter{'s' * (matter == 1)}"
    title = "Settings and facts"
    runs = list(dict.fromkeys(name for entry in differences for name in entry.values))
    if len(runs) > MOST_COLUMNS:
        return Section(title, _list_values(differences, len(same)), folded=True, result=told)
    badges = {True: badge("matters", "bad"), False: badge("harmless", "plain")}
    rows = [
        {
            "field": entry.field,
            "matters": badge("varied", "good") if entry.varied else badges[entry.matters],
            "why": entry.why,
            **{f"value of {name}": _short(value) for name, value in entry.values.items()},
        }
        for entry in differences
    ]
    of_runs = [Column(f"value of {name}", name) for name in runs]
    html = paragraph("Nothing differs.")
    if rows:
        html = html_table(rows, ["field", "matters", Column("why", wide=True), *of_runs])
    html += details(f"{len(same)} identical settings", html_table(same, ["field", "value"]))
    return Section(title, html, folded=True, result=told)


def _list_values(differences: Sequence[Difference], same: int) -> Markup:
    """List the values that keep runs apart, with the runs that have them, without the usual value."""
    rows = []
    for entry in (entry for entry in differences if entry.keeps_apart):
        runs: dict[str, list[str]] = {}
        for name, value in entry.values.items():
            text = format_fact(value)
            runs.setdefault(text if len(text) < HASH else f"{text[:12]}…", []).append(name)
        usual = max(runs, key=lambda value: len(runs[value]))
        others = [f"{value}: {name_few(names)}" for value, names in runs.items() if value != usual]
        rows.append({"field": entry.field, "most runs": usual, "others": "; ".join(others)})
    left = len(differences) - len(rows)
    html = html_table(rows, ["field", "most runs", Column("others", wide=True)])
    harmless = format_count(left, "harmless difference")
    return html + note(f"report.json has the reasons, {harmless} and {same} equal settings.")


def build_agreement(report: Report) -> Section:
    """Build the table of pairs with the distance of their first losses; of many pairs, those without a bar are
    folded.
    """
    rows = [
        {
            **pair,
            "pair": " and ".join(pair["runs"]),
            "agrees": AGREES[pair["agrees"]] if pair["allowed_pct"] is not None else None,
        }
        for pair in report["loss_agreement"]["pairs"]
    ]
    agree = [row for row in report["loss_agreement"]["pairs"] if row["agrees"] is not None]
    told = f"{sum(row['agrees'] for row in agree)} of {format_count(len(agree), 'judged pair')} agree"
    told = told if agree else "no pair judged"
    columns: Columns = [
        Column("pair", "runs"),
        Column("steps", "steps compared"),
        Column("max_abs_loss_difference", "largest loss difference"),
        Column("max_rel_loss_difference", "relative to the loss"),
        Column("loss_difference_pct", "to the mean loss", "%"),
        Column("allowed_pct", "allowed", "%"),
        Column("allowed_by", "by"),
        Column("agrees", ""),
        Column("first_grad_norm_difference", "gradient norm of step 1, difference"),
    ]
    remark = note(NOTES.agreement(FIRST_STEPS))
    shown = rows
    if len(rows) > MOST_PAIRS:  # pairs that other facts keep apart are not judged
        judged = [row for row in rows if row["allowed_pct"] is not None]
        shown = sorted(judged, key=lambda row: -(row["loss_difference_pct"] or 0.0))[:MOST_SHOWN]
        remark += note(f"The other {len(rows) - len(shown)} of {len(rows)} pairs: report.json.")
    return Section("Agreement of the losses", html_table(shown, columns) + remark, folded=True, result=told)


def build_sources(report: Report) -> Section:
    """Build the table of each number's source and of missing files; of many runs only those that lack one."""
    html = Markup(NOTES.sources(RULE))
    listed = [row for row in report["runs"] if len(report["runs"]) <= MOST_COLUMNS or not row["complete"]]
    rows = [
        {
            **row,
            "warmup": f"{cut['steps']} steps: {cut['method']}" if (cut := row["warmup"]) else None,
            "complete": badge("complete", "good") if row["complete"] else badge("not complete", "warn"),
            "lacks": ", ".join([*row["missing"], *row["problems"]]) or None,
        }
        for row in listed
    ]
    columns: Columns = [
        *("run", "complete", "lacks", "attempts", Column("ending", "how it ended")),
        *(Column("step_times_from", "step times from"), Column("warmup", "warm-up left out")),
        *("run_dir", "mlflow_run_id"),
    ]
    whole = f"{sum(row['complete'] for row in report['runs'])} of {format_count(len(report['runs']), 'run')} complete"
    html += html_table(rows, columns) if rows else Markup("")
    return Section("Sources of the numbers", html, folded=True, result=whole)


def either(value: Any) -> str:
    """Return a fact of the origin; a list holds the values on which the runs differ. Of many numbers the range is
    enough.
    """
    if isinstance(value, list) and len(value) > MOST_VALUES and all(map(is_number, value)):
        return f"{format_number(min(value))} to {format_number(max(value))}"
    return " / ".join(map(either, value)) if isinstance(value, list) else format_number(value)


def _short(value: Any) -> Any:
    """Return the value with hashes cut: their first letters distinguish them."""
    if isinstance(value, str) and len(value) >= HASH and " " not in value:
        return Markup('<span title="{}">{}…</span>').format(value, value[:12])
    if isinstance(value, list):
        return ", ".join(map(format_fact, value))
    return format_fact(value) if isinstance(value, (dict, int, float)) else value

"""Pages against the code: requirements, stops, the keys of a sweep, the path on a cluster."""

import re
from pathlib import Path

import yaml

from docs.building.sweep_page import write_sweep
from stratlab.sweep.definition import Sweep, Tune
from stratlab_spec.exit_codes import REASONS
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.faults import KINDS
from stratlab_spec.settings.fields import Settings
from tests.documents.commands import ROOT
from tests.documents.test_commands import find_problems as find_command_problems

PAGE = ROOT / "docs/requirements.md"
ASKED = {"P": 11, "M": 18, "D": 12, "S": 19, "O": 11, "L": 21, "W": 7, "X": 16, "T": 13, "E": 8, "G": 9}
"""Rows of the source's eleven tables; beside them there are twelve decisions."""
IDS = [
    *(f"S-{table}{i}" for table, rows in ASKED.items() for i in range(1, rows + 1)),
    *(f"C{i}" for i in range(1, 13)),
]
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
SOURCES_OWN = {
    *("stratlab doctor", "--config", "launch_distributed.sh", "launch_multi_node.sh", "hostfile.txt"),
    "model_config.yaml",
}
"""What does not exist, and is said not to."""


def find_problems(text):
    """What is wrong with the pages: a row's name, and with which word."""
    lines = [line for line in text.splitlines() if re.match(r"\|(S-|C\d)", line)]
    rows = [[cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")] for line in lines]
    told = [row[0] for row in rows]
    found = {f"{name}: row" for name in {*IDS, *told} if told.count(name) != 1 or name not in IDS}
    return found | {f"{row[0]}: {problem}" for row in rows for problem in _judge(row)}


def _judge(row):
    if len(row) != 4 or not all(row[:3]):
        yield "cell"
        return
    _, _, where, state = row
    word, _, rest = state.partition(" ")
    known = {"open:": len(rest.split()) >= 3, "": not rest}
    if word == "GPU:":
        name = rest.strip("`")
        known[word] = (
            name == "make gpu" or (ROOT / "experiments" / f"{name.replace('/', '/full/')}.yaml").exists()
        )
    if not known.get(word) or not (SPAN.search(where) or LINK.search(where)):
        yield "state"
    yield from (span for span in SPAN.findall(where) if span not in SOURCES_OWN and not _exists(span))
    yield from (target for target in LINK.findall(where) if not (PAGE.parent / target).exists())


def _exists(span):
    if span in Config.model_fields:
        return True
    if span.startswith(("stratlab ", "python ", "make ")):
        return not [*find_command_problems(span)]
    return re.fullmatch(r"[A-Za-z_.]+(/[A-Za-z0-9_.-]+)*/?", span) is not None and (ROOT / span).exists()


def test_everything_is_there_once_and_what_it_names_exists():
    assert len(IDS) == 157 and find_problems(PAGE.read_text()) == set()


STOPS, FAULTS, CODES = (
    (ROOT / "docs" / name).read_text() for name in ("stops.md", "faults.md", "troubleshooting.md")
)
IN_A_CHART = {"grace_s": 120, "wait_s": 86400, "allow_faults": False}
"""Setting -> what the charts give (charts/run/values.yaml)."""
WORDS = {False: "off", True: "on", "": ""}


def read_table(title, page=STOPS):
    """Cells of the first table below a heading, without its head."""
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def find_stop_problems(page, faults, codes):
    problems = []
    told = {int(code): reason for code, reason in read_table("Exit codes", codes)}
    problems += [f"exit code {code}" for code in sorted(told.keys() ^ REASONS.keys())]
    for code in told.keys() & REASONS.keys():
        if REASONS[code].split(",")[0].split(" ")[0] != re.split(r"[ ,:]", told[code])[0]:
            problems.append(f"the reason of {code}")
    kinds = [row[0].strip("`") for row in read_table("Kinds of faults", faults)]
    if kinds != [*KINDS]:
        problems.append("the kinds of faults")
    for cell, default, _ in read_table("Settings", page):
        name = (re.search(r"\(`(\w+)`\)", cell) or re.search(r"`([\w.]+)`", cell))[1]
        if name == "run.suspend":
            continue
        if name not in Settings.model_fields:
            problems.append(f"no setting {name}")
            continue
        value = IN_A_CHART.get(name, Settings.model_fields[name].default)
        word = WORDS.get(value, str(value)) if isinstance(value, bool | str) else str(value)
        if default.split(" ")[0] != word:
            problems.append(f"the default of {name}")
    return problems


def test_exit_codes_kinds_and_defaults_are_those_of_the_code():
    assert find_stop_problems(STOPS, FAULTS, CODES) == []


def test_every_key_of_a_sweep_is_described_with_its_default():
    rows = re.findall(r"^\| `(\w+)` \| (\S.*) \| (.+) \|$", write_sweep(Path()), flags=re.MULTILINE)
    assert [name for name, *_ in rows] == [*Sweep.model_fields, *Tune.model_fields]


SIZES = {"README.md": 8_000, "LAB.md": 25_000, "CHANGELOG.md": 6_000, "docs/architecture.md": 20_000}
PAGE_BYTES, USER_BYTES = 14_000, 170_000
LONG = ("docs/codes.md", "docs/troubleshooting.md")


def test_pages_keep_their_sizes():
    """The sum is of hand-written pages outside the section Contributors."""
    sections = {
        title: pages
        for each in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
        for title, pages in each.items()
    }
    sizes = {page.relative_to(ROOT).as_posix(): page.stat().st_size for page in (ROOT / "docs").rglob("*.md")}
    sizes |= {name: (ROOT / name).stat().st_size for name in SIZES}
    assert {
        name: size for name, size in sizes.items() if name not in LONG and size > SIZES.get(name, PAGE_BYTES)
    } == {}
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130
    users = [page for title, pages in sections.items() if title != "Contributors" for page in pages]
    counted = {*users} & sizes.keys() - {*SIZES, "docs/codes.md"}
    assert sum(sizes[page] for page in counted) <= USER_BYTES

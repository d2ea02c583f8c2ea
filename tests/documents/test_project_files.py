"""The files that a repository's guests look for: they are there, well formed, and of this version."""

import re
from pathlib import Path

import yaml

from docs.building import demo_tables
from docs.building.tables import NETWORKS_FILE, PAGES, collect_networks
from tests.documents.commands import ROOT

FORMS = sorted((ROOT / ".github").rglob("*.yml"))


def test_the_newest_entry_is_of_this_version():
    version = (ROOT / "VERSION").read_text().strip()
    newest = re.search(r"^## \[(\S+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest[1] == version


def test_the_workflow_runs_what_lands_and_targets_that_there_are():
    (flow,) = (path for path in FORMS if path.parent.name == "workflows")
    jobs = yaml.safe_load(flow.read_text())["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert runs == [".ci/run", "make docs"] and (ROOT / ".ci/run").is_file()
    assert all(job["timeout-minutes"] <= 90 for job in jobs.values())


def test_their_links_lead_somewhere():
    for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / name).read_text()):
            assert (ROOT / target).exists(), f"{name}: {target}"


def test_each_symptom_has_files_of_tests_in_which_it_happens():
    symptoms = re.findall(r"^## (.+)$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    rows = dict(
        re.findall(r"^\| ([^|]+) \| (.*`tests/.*) \|$", (ROOT / "docs/testing.md").read_text(), re.MULTILINE)
    )
    for symptom in symptoms:
        found = re.findall(r"`(tests/[^`]+\.py)`", rows.get(symptom, ""))
        assert found and [file for file in found if not (ROOT / file).is_file()] == [], symptom


def test_what_repeats_tables_is_as_make_schema_writes_it():
    assert NETWORKS_FILE.read_text() == collect_networks(), "make schema"
    rows = {"models.md": "| `cnn` |", "strategies.md": "| `zero3` |"}
    for name, write in PAGES.items():
        text = (Path("docs") / name).read_text()
        assert write(text) == text, "make schema"
        assert write(text.replace(rows[name], "| gone |", 1)) == text


def test_the_demo_s_numbers_are_those_of_its_kept_runs():
    for name, write in demo_tables.PAGES.items():
        text = Path(name).read_text()
        assert write(text) == text, "make pages"
        assert write(text.replace("98.89", "98.80")) == text

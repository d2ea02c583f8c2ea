"""The files that a repository's guests look for: they are there, well formed, and of this version."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.documents.commands import ROOT

FORMS = sorted((ROOT / ".github").rglob("*.yml"))


def test_the_newest_entry_is_of_this_version() -> None:
    version = (ROOT / "VERSION").read_text().strip()
    newest = re.search(r"^## (\S+?),", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest[1] == version


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_what_github_reads_is_yaml(path) -> None:
    content = yaml.safe_load(path.read_text())
    assert content["name"] and (content.get("body") or content["jobs"])


def test_the_workflow_runs_what_lands_and_targets_that_there_are() -> None:
    (flow,) = (path for path in FORMS if path.parent.name == "workflows")
    jobs = yaml.safe_load(flow.read_text())["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert runs == [".ci/run", "make docs"] and (ROOT / ".ci/run").is_file()
    assert all(job["timeout-minutes"] <= 90 for job in jobs.values())


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_their_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / name).read_text()):
        assert (ROOT / target).exists(), f"{name}: {target}"

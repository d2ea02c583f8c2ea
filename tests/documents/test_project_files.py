"""The files that a repository's guests look for: they are there, well formed, and of this version."""

import re
import tomllib

import yaml

from tests.documents.commands import ROOT

FORMS = sorted((ROOT / ".github").rglob("*.yml"))


def test_the_newest_entry_is_of_this_version() -> None:
    version = (ROOT / "VERSION").read_text().strip()
    newest = re.search(r"^## \[(\S+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest[1] == version


def test_what_github_reads_is_yaml() -> None:
    for path in FORMS:
        content = yaml.safe_load(path.read_text())
        assert content["name"] and (content.get("body") or content["jobs"]), path


def test_the_workflow_runs_what_lands_and_targets_that_there_are() -> None:
    (flow,) = (path for path in FORMS if path.parent.name == "workflows")
    jobs = yaml.safe_load(flow.read_text())["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert runs == [".ci/run", "make docs"] and (ROOT / ".ci/run").is_file()
    assert all(job["timeout-minutes"] <= 90 for job in jobs.values())


def test_their_links_lead_somewhere() -> None:
    for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / name).read_text()):
            assert (ROOT / target).exists(), f"{name}: {target}"


def test_each_symptom_has_files_of_tests_in_which_it_happens() -> None:
    symptoms = re.findall(r"^## (.+)$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    rows = dict(
        re.findall(r"^\| ([^|]+) \| (.*`tests/.*) \|$", (ROOT / "docs/testing.md").read_text(), re.MULTILINE)
    )
    for symptom in symptoms:
        found = re.findall(r"`(tests/[^`]+\.py)`", rows.get(symptom, ""))
        assert found and [file for file in found if not (ROOT / file).is_file()] == [], symptom


def test_a_scanner_for_secrets_passes_hashes_in_what_programs_wrote_and_nothing_else() -> None:
    (rule,) = tomllib.loads((ROOT / ".gitleaks.toml").read_text())["rules"]
    (allowed,) = rule["allowlists"]
    assert allowed["condition"] == "AND" and allowed["regexTarget"] == "secret"
    keys = {
        (path, value)
        for path in (f"reports/{file.name}" for file in (ROOT / "reports").glob("*.json"))
        for value in re.findall(r'"key": "([^"]+)"', (ROOT / path).read_text())
    }
    assert len(keys) > 100
    for path, value in keys:
        assert any(re.search(pattern, path) for pattern in allowed["paths"])
        assert any(re.search(pattern, value) for pattern in allowed["regexes"]) == bool(
            re.fullmatch(r"[0-9a-f]+", value)
        )
    for secret in ("sk9-Qw7ZpL3xV8nT2mK5rB1dY6", "AKIAQ7ZLXV8NT2MK5RB1"):
        assert not any(re.search(pattern, secret) for pattern in allowed["regexes"])
    for own in ("trainer/worker.py", "charts/run/values.yaml", "manifests/base/mlflow/deployment.yaml"):
        assert not any(re.search(pattern, own) for pattern in allowed["paths"])

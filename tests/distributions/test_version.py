"""One version, in VERSION: all distributions read it, and whoever has to write it down again writes the same."""

import re
import subprocess
import sysconfig
from importlib.metadata import distributions

import pytest

from tests.distributions.built import HOMES, ROOT

NUMBER = r"(\d+\.\d+\.\d+)"
PATTERNS = (
    (r".*", rf"\bstratlab-(?:lab|trainer)[:-]{NUMBER}"),  # images and their archives
    (r"charts/([^/]+/Chart\.yaml|new_chart\.py)", rf"^ *version: {NUMBER}$"),
    (r"charts/run/values\.yaml|manifests/.*", rf"^ *(?:tag|newTag): {NUMBER}$"),
    (
        r"charts/run/values\.yaml|charts/values_schema\.py|charts/run/values\.schema\.json",
        rf"\b{NUMBER}@sha256",
    ),
    (r"images/[^/]+/Dockerfile", rf"^ARG VERSION={NUMBER}$"),
)
"""(files, what in them is the version)"""
HISTORY = re.compile(r"reports/|LAB\.md|requirements/|images/[^/]+/requirements\.txt")


def find_versions(root, names):
    """(file:line, version) of every place that names the project's version."""
    found = []
    for name in names:
        patterns = [re.compile(text, re.MULTILINE) for files, text in PATTERNS if re.fullmatch(files, name)]
        try:
            text = (root / name).read_text()
        except (UnicodeDecodeError, OSError):  # a picture, a link to a folder, a file that was taken away
            continue
        for pattern in patterns:
            for match in pattern.finditer(text):
                found.append((f"{name}:{text.count(chr(10), 0, match.start(1)) + 1}", match[1]))
    return found


def list_files():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if not HISTORY.match(name)]


def test_every_place_names_the_version_of_the_one_file():
    version = (ROOT / "VERSION").read_text().strip()
    assert re.fullmatch(NUMBER, version)
    places = find_versions(ROOT, list_files())
    assert [f"{place} says {found}" for place, found in places if found != version] == []
    files = {place.partition(":")[0] for place, _ in places}
    needed = {
        "docs/cluster.md",
        "images/lab/Dockerfile",
        "charts/ddp/Chart.yaml",
        "stratlab/commands/cluster.py",
    }
    assert needed | {"charts/run/values.yaml", "manifests/overlays/cluster/kustomization.yaml"} <= files


@pytest.mark.parametrize("name", HOMES)
def test_all_distributions_read_it(name):
    (found,) = distributions(name=name, path=[sysconfig.get_path("purelib")])
    assert found.version == (ROOT / "VERSION").read_text().strip()
    text = (ROOT / HOMES[name] / "pyproject.toml").read_text()
    assert 'version = { file = "VERSION" }' in text and not re.search(r"^version = \"", text, re.MULTILINE)
    assert (ROOT / HOMES[name] / "VERSION").resolve() == ROOT / "VERSION"

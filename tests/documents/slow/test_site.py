"""The documentation as a site: it builds, no link in it is dead, and what it is made from is all there."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

from stratlab.analysis.tables import SCHEMA
from stratlab_spec.strategies import STRATEGIES
from tests.documents.commands import ROOT
from tests.documents.examples import judge, sweep_plan


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Targets(HTMLParser):
    """Where a page leads, and the places in it that others can lead to."""

    def __init__(self, page):
        super().__init__()
        self.links = []
        self.places = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.links += [found[name] or "" for name in ("href", "src") if name in found]
        self.places |= {found[name] or "" for name in ("id", "name") if name in found}


def test_no_link_of_the_site_is_dead(site):
    pages = {path.resolve(): Targets(path) for path in site.rglob("*.html")}
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html" or not link:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            inner = pages[target].places if target in pages else None
            if not target.is_file() or (parts.fragment and inner is not None and parts.fragment not in inner):
                dead.append(f"{path.relative_to(site.resolve())}: {link}")
    assert len(pages) > 30 and not dead, "\n".join(dead)


def test_nothing_is_fetched_from_elsewhere(site):
    for path in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|link)[^>]+(?:src|href)=\"(https?://[^\"]+)", path.read_text())
        assert not [link for link in loaded if "canonical" not in link], path


def test_each_strategy_command_setting_and_column_is_there(site):
    pictures = (site / "docs/reference/strategies.html").read_text()
    assert all(re.search(rf"<h2[^>]*>[^<]*\b{name}\b", pictures) for name in STRATEGIES)
    commands = (site / "docs/reference/commands.html").read_text()
    assert all(f"stratlab {verb}" in commands for verb in ("rehearse", "compare", "metrics replay", "fetch"))
    assert "--on-cluster" in commands
    settings = (site / "docs/reference/settings.html").read_text()
    assert "collective_timeout_s" in settings and "run.scheduling.gang" in settings
    tables = (site / "docs/reference/tables.html").read_text()
    assert all(f"<code>{column}</code>" in tables for columns in SCHEMA.values() for column in columns)


def test_the_trainer_takes_every_release_of_the_sweep(tmp_path):
    plan = sweep_plan()
    assert len(plan) == 10
    for planned in plan:
        judge(planned.workload.object, TRAINER_RESULTS=str(tmp_path))

"""Which tests are collected, in what order; one MLflow server for all; the parity suites' tables."""

import gc
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.budget import Budget
from tests.parity_report import PARITY, PARITY_LLM, PARITY_LLM_SMALL, PARITY_SMALL, ROOT, parity_table
from tests.session import close_session, find_server, open_session
from tests.tiers import FAST, TIER_VARIABLE, TIERS, refuse_in_fast, tier_of

TABLES = (
    ("parity with one process", PARITY, parity_table),
    ("language models: parity with one process", PARITY_LLM, parity_table),
    ("parity with one process, small matrix", PARITY_SMALL, parity_table),
    ("language models: parity with one process, small matrix", PARITY_LLM_SMALL, parity_table),
)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: test processes share the cores
LONGEST = ("rehearsals", "parity_llm", "parity", "ranks", "processes", "hta", "in_browser")
"""Folders that are started first, so that several workers end together (pytest-xdist hands out whole files)."""
TESTS = ROOT / "tests"
STARTED = pytest.StashKey[float]()
TIER_NAMES = tuple(tier.name for tier in TIERS)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier", action="append", choices=TIER_NAMES,
        help="only tests of this tier (tests/tiers.py), may be repeated; without paths and tiers: fast",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STARTED] = time.time()
    open_session(os.getppid() if is_worker(config) else os.getpid())
    config.pluginmanager.register(Budget())


def pytest_unconfigure(config: pytest.Config) -> None:
    if not is_worker(config):
        close_session()


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    wanted = chosen_tiers(config)
    if not wanted or collection_path.suffix != ".py" or not collection_path.is_relative_to(TESTS):
        return None
    return True if tier_of(collection_path.relative_to(TESTS)).name not in wanted else None


def chosen_tiers(config: pytest.Config) -> list[str]:
    """The tiers of the command line; none = all, because somebody named paths."""
    if tiers := config.getoption("--tier"):
        return list(tiers)
    return [FAST.name] if config.args_source is pytest.Config.ArgsSource.TESTPATHS else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        folders = item.path.relative_to(TESTS).parts[:-1]
        return min((LONGEST.index(name) for name in folders if name in LONGEST), default=len(LONGEST))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """What was imported lives for ever: looking through it again and again took a fifth of the processor's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tells what starts ranks or a browser which tier is running: `tests.tiers.refuse_in_fast` looks."""
    os.environ[TIER_VARIABLE] = tier_of(item.path.relative_to(TESTS)).name


@pytest.fixture(scope="session")
def mlflow_server() -> str:
    """The address of an MLflow server on loopback with sqlite and its own artifacts, one for all workers."""
    refuse_in_fast("an MLflow server")
    return find_server("tests.mlflow_server")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for title, path, table in TABLES:
        if path.exists() and path.stat().st_mtime >= config.stash[STARTED]:
            terminalreporter.section(f"{title} (gloo, CPU)")
            for line in table(json.loads(path.read_text())):
                terminalreporter.write_line(line)
            terminalreporter.write_line(f"written to {path.relative_to(ROOT)}")

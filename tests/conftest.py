"""The order of the tests, and the tables of the parity suites that ran."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.parity_report import PARITY, PARITY_LLM, ROOT, parity_llm_table, parity_table

TABLES = (
    ("parity with one process", PARITY, parity_table),
    ("language models: parity with one process", PARITY_LLM, parity_llm_table),
)
LONGEST = ("e2e", "parity_llm", "parity")
"""Folders that are started first, so that several workers end together (pytest-xdist hands out whole files)."""
STARTED = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STARTED] = time.time()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(ROOT / "tests").parts[0]
        return LONGEST.index(folder) if folder in LONGEST else len(LONGEST)

    items.sort(key=place)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for title, path, table in TABLES:
        if path.exists() and path.stat().st_mtime >= config.stash[STARTED]:
            terminalreporter.section(f"{title} (gloo, CPU)")
            for line in table(json.loads(path.read_text())):
                terminalreporter.write_line(line)
            terminalreporter.write_line(f"written to {path.relative_to(ROOT)}")

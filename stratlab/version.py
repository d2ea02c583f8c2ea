"""Which stratlab this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def read_version() -> str:
    """Of the installed package; `unknown` where its code alone was copied."""
    try:
        return version("stratlab")
    except PackageNotFoundError:
        return "unknown"

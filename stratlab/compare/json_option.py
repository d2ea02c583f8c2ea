"""`--json` alone prints, as that of every other command; with a FILE the report goes there as well."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

NAME, PRINTED = "--json", "-"


class JsonOrFile(TyperCommand):
    """A command that takes `--json`, `--json FILE` and `--json -`, which is the first one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, fill_in(args))


def fill_in(words: list[str]) -> list[str]:
    """With what `--json` stands for where no value follows it."""
    filled: list[str] = []
    for word in words:
        if filled[-1:] == [NAME] and word.startswith("-") and word != PRINTED:
            filled.append(PRINTED)
        filled.append(word)
    return [*filled, PRINTED] if filled[-1:] == [NAME] else filled

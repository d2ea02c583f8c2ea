from __future__ import annotations

import pytest

from tests.mutants.operators import find_places


def make(text: str) -> set[tuple[str, str]]:
    """(operator, the whole text with the fault)."""
    data = text.encode()
    return {
        (p.operator, (data[: p.start] + p.new.encode() + data[p.end :]).decode()) for p in find_places(text)
    }


@pytest.mark.parametrize(
    ("text", "operator", "made"),
    [
        ("a < b", "comparison turned", {"a > b"}),
        ("a < b", "bound moved", {"a <= b"}),
        ("(a or b) >= (c)", "bound moved", {"(a or b) > (c)"}),
        ("a is not b", "comparison turned", {"a is b"}),
        ("a not in b", "comparison turned", {"a in b"}),
        ("0 < a <= 9", "bound moved", {"0 <= a <= 9", "0 < a < 9"}),
        ("a and (b) and c", "and for or", {"a or (b) and c", "a and (b) or c"}),
        ("f(7)", "constant off by one", {"f(8)", "f(6)"}),
        ("(a + b) * 1000", "scale forgotten", {"(a + b)"}),
        ("a // 2", "scale forgotten", {"a"}),
        ("f(a, (b), c=d)", "arguments swapped", {"f(b, (a), c=d)"}),
        ("a if b else c", "condition negated", {"a if not (b) else c"}),
        ("if a == b:\n    c()", "branch dropped", {"if False:\n    c()"}),
        ("self._config.lr", "default for setting", {"0.001"}),
        ("run.config.strategy", "default for setting", {"'single'"}),
        ("max(a, b)", "max for min", {"min(a, b)"}),
        ("a[0]", "first for last", {"a[-1]"}),
        ("a[-1]", "first for last", {"a[0]"}),
        ("'ü', a[0]", "first for last", {"'ü', a[-1]"}),
    ],
)
def test_what_an_operator_makes(text: str, operator: str, made: set[str]) -> None:
    assert {new for name, new in make(text) if name == operator} == made


@pytest.mark.parametrize(
    "text",
    [
        "a: Literal[1] = b",
        "def f(a: Literal[1]) -> Literal[2]: ...",
        "f'{a < 1}'",
        "if TYPE_CHECKING:\n    a = 1",
        "if __name__ == '__main__':\n    f()",
        "isinstance(a, b)",
        "config.run",  # has no default
        "x = 'text'",
    ],
)
def test_what_is_left_alone(text: str) -> None:
    assert make(text) == set()

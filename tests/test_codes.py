"""Every cause has a code of its own, and the page of codes lists all of them."""

from __future__ import annotations

import ast
from collections import Counter

from docs.building.message_codes import PACKAGES, ROOT, find_messages
from tests.codes import find_codes

ERRORS = {
    *(
        "UserError",
        "NothingThere",
        "ConfigError",
        "Refusal",
        "DataMissing",
        "AcceleratorsMissing",
        "TraceError",
    ),
    *("ArchiveError", "ClusterError", "PodRefused", "MlflowError", "ServerFailed", "NotLogged", "NoRun"),
    *("MissingShare", "NotCounted", "NoTraces", "NoProgress", "Overtaken"),
}
"""What ends a command or a run with a sentence for its user."""
FILLED_IN = {"trainer/launch/torchrun.py"}
"""Where the code comes with the cause that a sentence is filled with."""


def test_one_code_stands_for_one_cause() -> None:
    counts = Counter(message.code for message in find_messages())
    assert [code for code, count in counts.items() if count > 1] == []


def test_the_page_lists_the_codes_of_the_sources() -> None:
    assert find_codes(
        (ROOT / "docs" / "codes.md").read_text().replace("`SL-", "[SL-").replace("` |", "] |")
    ) == [
        "SL-run-live",  # the example
        *(message.code for message in find_messages()),
    ]


def test_an_error_with_a_sentence_of_its_own_ends_with_a_code() -> None:
    assert find_uncoded() == []


def find_uncoded() -> list[str]:
    """List where an error is raised whose text is written there and has no code."""
    found = []
    for package in PACKAGES[:2]:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text()
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                    name = ast.unparse(node.exc.func).rpartition(".")[2]
                    said = ast.get_source_segment(text, node.exc) or ""
                    place = path.relative_to(ROOT).as_posix()
                    if (
                        place not in FILLED_IN
                        and name in ERRORS
                        and _has_words(node.exc)
                        and "[SL-" not in said
                    ):
                        found.append(f"{place}:{node.lineno}: {name}")
    return found


def _has_words(call: ast.Call) -> bool:
    """Whether a text of the call is a sentence: at least three blanks in one piece."""
    texts = [
        node.value
        for node in ast.walk(call)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return max((text.count(" ") for text in texts), default=0) >= 3

"""Every cause has a code of its own, and the page of codes lists all of them."""

import ast
import re
from collections import Counter

from docs.building.message_codes import LONGEST, PACKAGES, ROOT, find_messages, shorten, write_page

ERRORS = {
    *(
        "UserError", "NothingThere", "ConfigError", "Refusal", "DataMissing", "AcceleratorsMissing",
        "TraceError",
    ),
    *("ArchiveError", "ClusterError", "PodRefused", "MlflowError", "ServerFailed", "NotLogged", "NoRun"),
    *("MissingShare", "NotCounted", "NoTraces", "NoProgress", "Overtaken"),
}  # fmt: skip
"""What ends a command or a run with a sentence for its user."""
FILLED_IN = {"trainer/launch/torchrun.py"}
"""Where the code comes with the cause that a sentence is filled with."""


def test_one_code_stands_for_one_cause() -> None:
    counts = Counter(message.code for message in find_messages())
    assert [code for code, count in counts.items() if count > 1] == []


def test_the_page_names_each_code_once_and_is_short() -> None:
    page = (ROOT / "docs" / "codes.md").read_text()
    assert page == write_page(find_messages()), "make schema"
    _, _, sections = page.partition("\n## ")
    assert Counter(re.findall(r"`(SL-[a-z0-9-]+)`", sections)) == Counter(
        each.code for each in find_messages()
    )
    assert len(page.encode()) <= 40_000
    assert all(len(shorten(each)) <= max(LONGEST, len(each.file) + 20) for each in find_messages())
    headings = {heading.lower() for heading in re.findall(r"^## (.*)$", read_troubleshooting(), re.MULTILINE)}
    assert {re.sub(r"[^a-z -]", "", heading).replace(" ", "-") for heading in headings} >= {
        anchor
        for anchor in re.findall(r"troubleshooting\.md#([a-z-]+)", page)
        if f'id="{anchor}"' not in read_troubleshooting()
    }


def read_troubleshooting() -> str:
    return (ROOT / "docs" / "troubleshooting.md").read_text()


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

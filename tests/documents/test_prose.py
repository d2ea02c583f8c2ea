"""README and the revised pages pass the style guide (docs/style.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.building.prose import LONGEST, find_problems, list_pages, read_page

UNREVISED = {"analysis.md", "compare.md", "monitoring.md"}
"""Pages that the guide has not reached. A revised page leaves this list, and none comes back."""


def test_revised_pages_pass_the_style_guide() -> None:
    revised = [page for page in list_pages() if page.name not in UNREVISED]
    assert "style.md" in {page.name for page in revised}
    problems = [problem for page in revised for problem in find_problems(read_page(page))]
    assert problems == [], "\n".join(problems)


@pytest.mark.parametrize(
    ("text", "findings"),
    [
        ("The trainer rejects unknown settings. What does it print?", 0),
        ("A run whose server was unreachable sends `what is missing` later.", 0),
        ("| file | What the rank wrote lies beside it. |", 3),
        (f"{'word ' * LONGEST}end.", 1),
        (f"{'word ' * (LONGEST - 1)}end.", 0),
        ("```\nnobody told it\n```\n\n* Where it fails, nothing is written.", 2),
    ],
)
def test_wordings_and_long_sentences_are_found_outside_code(text: str, findings: int, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert len([*find_problems(read_page(page))]) == findings

"""README and all pages pass the style guide (docs/style.md)."""

import pytest

from docs.building.prose import LONGEST, find_problems, list_pages, read_page


def test_pages_pass_the_style_guide():
    pages = list_pages()
    assert "style.md" in {page.name for page in pages}
    problems = [problem for page in pages for problem in find_problems(read_page(page))]
    assert problems == [], "\n".join(problems)


@pytest.mark.parametrize(
    ("text", "findings"),
    [
        ("The trainer rejects unknown settings. What does it print?", 0),
        ("A run whose server was unreachable sends `what is missing` later.", 0),
        ("| file | What the rank wrote lies beside it. |", 3),
        (f"{'word ' * LONGEST}end.", 1),
        (f"{'word ' * (LONGEST - 1)}end.", 0),
        ("Three settings are there. The page, where it reports nothing, is how a reader asks for them.", 5),
        ("```\nnobody told it\n```\n\n* Where it fails, nothing is written.", 3),
    ],
)
def test_wordings_and_long_sentences_are_found_outside_code(text, findings, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(text)
    assert len([*find_problems(read_page(page))]) == findings

"""Every page that is kept with an experiment is as today's program draws it from the kept runs."""

from pathlib import Path

import pytest

from experiments.catalogue import Part
from experiments.pages import list_kept
from tests.experiments.drawn_pages import check_pages


@pytest.mark.parametrize(
    ("part", "folder", "parts"), list(list_kept()), ids=lambda value: getattr(value, "full_name", "")
)
def test_it_is_drawn_as_it_is_kept(part: Part, folder: Path, parts: int, tmp_path: Path) -> None:
    check_pages(folder, parts, tmp_path)

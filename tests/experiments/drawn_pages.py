"""Pages of a kept result against those that today's program draws from its runs."""

from experiments.kept_runs import ARCHIVE
from experiments.result import draw_pages


def check_pages(folder, parts, drawn):
    """Every file that is drawn is in `folder` with the same content.

    Args:
        parts: of the experiment.
        drawn: an empty folder.
    """
    draw_pages(folder / ARCHIVE, drawn, parts)
    names = {path.name for path in drawn.iterdir()}
    assert {"report.json", "summary.md", "table.txt"} <= names
    assert names == {path.name for path in folder.iterdir()} - {ARCHIVE, "result.json"}
    assert [
        name for name in sorted(names) if (drawn / name).read_text() != (folder / name).read_text()
    ] == [], "make pages"

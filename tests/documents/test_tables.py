from pathlib import Path

from docs.building import demo_tables
from docs.building.tables import NETWORKS_FILE, PAGES, collect_networks


def test_what_repeats_tables_is_as_make_schema_writes_it() -> None:
    assert NETWORKS_FILE.read_text() == collect_networks(), "make schema"
    rows = {"models.md": "| `cnn` |", "strategies.md": "| `zero3` |"}
    for name, write in PAGES.items():
        text = (Path("docs") / name).read_text()
        assert write(text) == text, "make schema"
        assert write(text.replace(rows[name], "| gone |", 1)) == text


def test_the_demo_s_numbers_are_those_of_its_kept_runs() -> None:
    for name, write in demo_tables.PAGES.items():
        text = Path(name).read_text()
        assert write(text) == text, "make pages"
        assert write(text.replace("98.89", "98.80")) == text

from __future__ import annotations

from pathlib import Path

from docs.building.tables import NETWORKS_FILE, collect_networks, write_readme, write_rules


def test_what_repeats_tables_is_as_make_schema_writes_it() -> None:
    assert NETWORKS_FILE.read_text() == collect_networks(), "make schema"
    for name, write in (("README.md", write_readme), ("docs/analysis.md", write_rules)):
        text = Path(name).read_text()
        assert write(text) == text, "make schema"
        for row in ("| `cnn` |", "| `zero3` |", "| R4 |"):
            assert write(text.replace(row, "| gone |")) == text

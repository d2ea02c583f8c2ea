"""docs/compare.md names every key of a sweep's file, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from stratlab.sweep.definition import Sweep


def test_every_key_of_a_sweep_is_described_with_its_default() -> None:
    text = Path("docs/compare.md").read_text()
    part = text.partition("## Many runs from one file")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", part, flags=re.MULTILINE)
    assert {name for name, _ in rows} == set(Sweep.model_fields)
    for name, told in rows:
        field = Sweep.model_fields[name]
        assert (told == "needed") is field.is_required(), name
        if isinstance(field.default, str | int):
            assert str(field.default) in told, name

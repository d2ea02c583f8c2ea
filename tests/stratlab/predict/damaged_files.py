"""Operations files with one thing wrong."""

from __future__ import annotations

from typing import Any

DAMAGES = {
    "no samples": {"samples": []},
    "no settings": {"settings": {}, "samples": []},
    "settings a list": {"settings": []},
    "no strategy": {"settings": {"model": "vit_huge"}},
    "layers a text": {"layers": "many"},
}
SAMPLE_DAMAGES = {
    "windows a text": {"windows": "many"},
    "no windows": {"windows": {}},
    "a size that is a text": {"windows": {"forward": {"parameters": "many"}}},
    "a size beyond all": {"windows": {"forward": {"parameters": 10**400}}},
    "a negative size": {"windows": {"forward": {"parameters": -1}}},
    "axes a list": {"axes": [1]},
    "no rows": {"rows": 0},
    "rows that the other ranks lack": {"ranks": 3, "rows": 5},
}


def damage(content: dict[str, Any], name: str) -> dict[str, Any]:
    """The content of a file with one thing wrong."""
    if name in DAMAGES:
        return content | DAMAGES[name]
    return content | {"samples": [*content["samples"][:-1], content["samples"][-1] | SAMPLE_DAMAGES[name]]}

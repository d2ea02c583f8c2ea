"""Whether sizes that are given instead of a preset's own fit each other, as the trainer says it (`make schema`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from stratlab.tables.settings import SETTINGS

SIZE_RULES: dict[str, dict[str, int]] = json.loads(Path(__file__).with_name("size_rules.json").read_text())
SIZES = ("model_hidden", "model_heads", "model_kv_heads")


def find_size_refusal(settings: Mapping[str, str]) -> str:
    """Why no run can have these sizes, of settings as pods have them; "" = it can, or only the trainer knows.

    >>> find_size_refusal({"model": "vit_huge", "model_hidden": "1000", "model_heads": "16"})
    'model_hidden=1000: must be a multiple of heads=16, for example 992'
    """
    rule = SIZE_RULES.get(settings.get("model") or SETTINGS["model"]["default"])
    given = {name: settings.get(name, "0") for name in SIZES}
    if rule is None or settings.get("model_path") or not all(map(str.isdecimal, given.values())):
        return ""
    if not any(map(int, given.values())):
        return ""
    hidden, heads, kv_heads = (
        int(text) or rule.get(name.removeprefix("model_"), 0) for name, text in given.items()
    )
    found = []
    if rule["step"] and hidden % (step := rule["step"] * heads):
        of = f"2 x heads={heads} (rotary positions need an even width of each head)"
        near = max(1, round(hidden / step)) * step
        wanted = of if rule["step"] == 2 else f"heads={heads}"
        found.append(f"model_hidden={hidden}: must be a multiple of {wanted}, for example {near}")
    if "kv_heads" in rule and heads % kv_heads:
        fit = [str(n) for n in range(1, heads + 1) if heads % n == 0]
        found.append(
            f"model_kv_heads={kv_heads}: must divide heads={heads}, expected one of {', '.join(fit)}"
        )
    return "; ".join(found)

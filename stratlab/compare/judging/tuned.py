"""What a tuning came to, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratlab.compare.judging.winners import LEAST_LEAD_PCT
from stratlab.number import format_fact, format_number

ON_CPU = "tuned on CPU: these are CPU times, and choose nothing for GPUs"


def say_tuning(tuning: Mapping[str, Any] | None) -> list[str]:
    """One sentence for what was tuned, one for each combination that was not, and where CPU times have chosen."""
    if not tuning:
        return []
    searches = tuning["searches"]
    tuned = [f"{name_search(each)} {say_choice(each)}" for each in searches if not each["why_not"]]
    remarks = [f"tuned by {tuning['metric']['name']} first: {'; '.join(tuned)}"] if tuned else []
    remarks += [f"not tuned: {name_search(each)}, {each['why_not']}" for each in searches if each["why_not"]]
    if (tuning.get("origin") or {}).get("device") == "cpu":
        remarks.append(ON_CPU)
    return remarks


def name_search(search: Mapping[str, Any]) -> str:
    """`fsdp`, and the other places in the matrix: `fsdp (micro_batch_size=16)`."""
    others = [
        f"{path.rpartition('.')[2]}={value}" for path, value in search["point"].items() if path != "strategy"
    ]
    return f"{search['strategy']} ({', '.join(others)})" if others else str(search["strategy"])


def name_knobs(knobs: Mapping[str, Any]) -> str:
    """`reduce_bucket_mib=50`, or `as it comes`."""
    return ", ".join(f"{name}={format_fact(value)}" for name, value in knobs.items()) or "as it comes"


def say_choice(search: Mapping[str, Any]) -> str:
    """What was taken, and by how much it is better than the strategy as it comes, against the noise."""
    if not search["tried"]:
        return "has no knob"
    left_out = ", ".join(name_knobs(each) for each in search.get("not_tried", []))
    return _say_chosen(search) + (f"; not tried, for want of candidates: {left_out}" if left_out else "")


def _say_chosen(search: Mapping[str, Any]) -> str:
    chosen = next(each for each in search["tried"] if each["knobs"] == search["chosen"])
    text = f"{name_knobs(search['chosen'])} of {len(search['tried'])} candidates"
    if not search["chosen"]:
        return f"{text}, for none is better by more than {_noise(search['tried'])}"
    if chosen["lead_pct"] is None:
        return f"{text}; as it comes it gave no number: {search['tried'][0]['why']}"
    return f"{text}, {chosen['lead_pct']:+.1f} %; {_noise([chosen])}"


def _noise(tried: list[Mapping[str, Any]]) -> str:
    noisy = [each for each in tried if each["measured_noise"]]
    if not noisy:
        return f"{LEAST_LEAD_PCT:g} %, which counts as none without repeats"
    return f"the noise of repeats, {format_number(max(each['noise_pct'] for each in noisy))} %"

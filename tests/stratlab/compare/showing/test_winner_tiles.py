"""Tiles that say something; what has no winner is one tile with the reason."""

from __future__ import annotations

import re

from stratlab.compare.judging.winners import METRICS, NO_INTERVAL
from stratlab.compare.showing.winner_tiles import build_tiles

KEYS = [metric.key for metric in METRICS]


def read_tiles(winners: dict[str, str | None], reasons: dict[str, str]) -> list[list[str]]:
    html = build_tiles({"winners": winners, "winner_reasons": reasons})
    return [re.findall(r">([^<]+)<", tile) for tile in html.split('<div class="tile')[2:]]


def test_questions_without_a_winner_are_one_tile() -> None:
    winners = dict.fromkeys(KEYS) | {"state_memory_gib": "fsdp"}
    tiles = read_tiles(
        winners, dict.fromkeys(KEYS, "on a CPU") | {"state_memory_gib": f"1 against 2{NO_INTERVAL}"}
    )
    assert tiles == [
        ["least memory held by the state", "fsdp", "1 against 2"],
        [
            "highest throughput, shortest step, least exposed communication, lowest peak of device memory",
            "no winner",
            "on a CPU",
        ],
    ]


def test_each_reason_is_told_once() -> None:
    reasons = dict.fromkeys(KEYS, "on a CPU") | {"peak_memory_gib": "no device"}
    ((asked, answer, why),) = read_tiles(dict.fromkeys(KEYS), reasons)
    assert (asked, answer) == ("5 questions", "no winner")
    assert why.count("on a CPU") == 1 and why.endswith("lowest peak of device memory: no device")


def test_where_every_question_has_a_winner_there_is_no_other_tile() -> None:
    tiles = read_tiles(dict.fromkeys(KEYS, "ddp"), dict.fromkeys(KEYS, "ahead"))
    assert len(tiles) == 5 and all(tile[1] == "ddp" for tile in tiles)

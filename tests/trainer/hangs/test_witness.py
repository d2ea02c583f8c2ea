"""What is under way, from torch's record: its counts may say that something is, long after it has ended."""

from __future__ import annotations

import pytest

from trainer.hang_detection import watchdog_thread as witness


def entry(number: int, retired: bool) -> dict:
    return {
        "pg_id": 3, "collective_seq_id": number, "retired": retired, "profiling_name": "gloo:broadcast",
        "process_group": ["3", "disk"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ended", "entries", "found"),
    [
        (6, [entry(6, True)], []),
        (5, [entry(5, True), entry(6, False)], ["gloo:broadcast 6 of disk"]),
        (5, [entry(5, True), entry(6, True)], []),  # 5 was noted behind 6
        (4, [entry(5, True), entry(6, False)], ["gloo:broadcast 6 of disk"]),
        (5, [], ["collective 6"]),
    ],
)
def test_what_has_ended_is_not_under_way(monkeypatch, ended, entries, found):
    counts = {"3": {"last_enqueued_collective": "6", "last_completed_collective": str(ended)}}
    record = {"pg_status": counts, "entries": entries}
    monkeypatch.setattr(witness, "_read_recorder", lambda whole: record if whole else {"pg_status": counts})
    assert witness.find_pending() == found and witness.is_pending() is bool(found)

"""Who did not arrive, from what ranks say: every rule once, and no rank that waits is blamed."""

import pytest

from tests.codes import find_codes
from trainer.hang_detection import rank_zero_task
from trainer.hang_detection import watchdog_thread as witness
from trainer.hang_detection.heartbeat import Frame, Group, RankState, judge, read_stack

WAIT = [Frame("/site-packages/torch/distributed/distributed_c10d.py", 3000, "all_reduce")]
BACKWARD = [Frame("/site-packages/torch/autograd/graph.py", 800, "_engine_run_backward")]
READ = [
    Frame("/usr/lib/python3.11/pathlib.py", 1050, "read_bytes"),
    Frame("/app/trainer/data/batches.py", 88, "build"),
]
EARLIER = ["gloo:all_reduce 56 of mesh_dp_shard"]
PENDING = ["gloo:all_reduce 57 of mesh_dp_shard"]


def waiting(rank: int, **more) -> RankState:
    facts = {
        "pod": f"w-{rank // 2}", "node": "", "step": 12, "still_s": 450.0, "answers": True,
        "process_state": "S",
    }  # fmt: skip
    return RankState(**{"rank": rank, **facts, "stack": WAIT, "pending": PENDING} | more)


def silent(rank: int, **more) -> RankState:
    return waiting(rank, **{"answers": False, "pending": [], "stack": []} | more)


def groups(begun: int, name: str = "1", ranks=(0, 1, 2, 3)) -> dict[str, Group]:
    return {name: Group("mesh_dp_shard", list(ranks), begun)}


@pytest.mark.parametrize(
    ("culprit", "said"),
    [
        ({"process_state": "T", "answers": False, "stack": [], "pending": []}, ""),
        ({"answers": False, "stack": READ, "pending": []}, ""),
        ({"stack": READ, "pending": [], "phase": "data"}, "lib/python3.11/pathlib.py"),
        ({"stack": READ}, "trainer/data/batches.py:88 build"),
        ({"stack": BACKWARD, "pending": []}, "torch/autograd/graph.py:800"),
        ({"step": 11, "pending": EARLIER}, "step 11"),
    ],
)
def test_each_rule_finds_its_rank(culprit, said):
    others = {"groups": groups(57)}
    states = [waiting(0, **others), waiting(1, **others), waiting(2, **culprit), waiting(3, **others)]
    found = judge(states, 4)
    assert found.ranks == [2], found.sentence
    assert find_codes(found.sentence) == ["SL-rank-absent"] and said in found.sentence
    assert "w-1" in found.sentence and "gloo:all_reduce 57 of mesh_dp_shard" in found.sentence


def test_a_rank_that_waits_inside_of_a_backward_pass_waits():
    assert judge([waiting(0, stack=BACKWARD), waiting(1, stack=READ, pending=[])], 2).ranks == [1]


def test_a_rank_that_waits_and_does_not_answer_is_not_the_one():
    assert judge([silent(0, stack=WAIT), waiting(1, stack=READ, pending=[])], 2).ranks == [1]


def test_counts_are_compared_inside_of_a_group_alone():
    states = [
        waiting(0, groups=groups(57, "1", (0, 1))),
        waiting(1, groups=groups(57, "1", (0, 1))),
        waiting(2, groups=groups(12, "2", (2, 3)), pending=EARLIER),
        waiting(3, groups=groups(11, "2", (2, 3)), pending=EARLIER),
    ]
    assert judge(states, 4).ranks == [3]


def test_ranks_of_which_nothing_is_heard_come_first():
    found = judge([waiting(0), waiting(1)], 4)
    assert (found.ranks, find_codes(found.sentence)) == ([2, 3], ["SL-ranks-unheard"])


def test_where_all_wait_alike_nobody_is_blamed():
    found = judge([waiting(0, groups=groups(57)), waiting(1, groups=groups(57))], 2)
    assert found.ranks == [] and find_codes(found.sentence) == ["SL-all-ranks-wait"]


DUMP = """Current thread 0x00007f01 (most recent call first):
  File "/app/trainer/old.py", line 1 in old
Thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
Current thread 0x00007f01 (most recent call first):
  File "/app/trainer/loop.py", line 47 in train
  File "<string>", line ??? in <module>
Thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
"""


def test_the_newest_dump_of_the_main_thread_is_read():
    found = read_stack(DUMP, 0x7F01)
    assert found == [Frame("/app/trainer/loop.py", 47, "train"), Frame("<string>", 0, "<module>")]
    assert str(found[0]) == "trainer/loop.py:47 train"
    assert read_stack("", 0x7F01) == read_stack(DUMP, 0x7F03) == []


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


def test_a_wait_for_what_rank_0_does_by_itself_is_a_wait() -> None:
    assert Frame(rank_zero_task.__file__, 93, "_wait").is_wait
    assert not Frame(witness.__file__, 80, "run").is_wait


def test_of_ranks_that_wait_for_each_other_eight_are_described():
    verdict = judge([waiting(rank, pending=[f"gloo:all_reduce {rank} of a"]) for rank in range(9)], 9)
    assert verdict.ranks == [] and "rank 7:" in verdict.sentence and "rank 8:" not in verdict.sentence

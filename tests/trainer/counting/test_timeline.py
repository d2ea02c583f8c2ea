import pytest

from trainer.memory_estimation.timeline import AT_ONCE, Label, Storage, Timeline


def storage(cause: str, operator: str = "empty") -> Storage:
    return Storage(Label("forward", operator, "float32", (2,)), cause)


def test_sizes_are_whole_blocks_and_the_peak_is_the_largest_moment():
    timeline = Timeline(512)
    first, second = storage("parameters"), storage("activations")
    timeline.resize(first, 1)
    timeline.resize(first, 500)  # within the same block: no event
    timeline.resize(second, 513)
    timeline.resize(second, 0)
    assert [delta for delta, _ in timeline.events] == [512, 1024, -1024]
    peak = timeline.peak(0)
    assert peak.total == 1536 and sum(peak.by_cause().values()) == peak.total
    assert timeline.moment(3).storages == {first: 512}


def test_the_windows_of_a_step_are_found_in_its_backward_pass():
    """Four layers of 100 blocks are saved; the loss takes 50 first, the embedding 300 last."""
    timeline = Timeline(1)
    timeline.begin("forward")
    saved = [storage("activations") for _ in range(4)]
    for one in saved:
        timeline.resize(one, 100)
    timeline.begin("backward")
    loss, inside, last = storage("logits and loss"), storage("other"), storage("gradients")
    timeline.resize(loss, 50)
    timeline.resize(loss, 0)
    for number, one in enumerate(reversed(saved)):
        timeline.resize(one, 0)
        if number == 0:
            timeline.resize(inside, 60)
    timeline.resize(last, 300)
    timeline.begin("optimizer")
    timeline.resize(inside, 0)
    found = {name: moment.total for name, moment in timeline.windows(0).items()}
    assert found == {
        "forward": 400, "backward, begin": 450, "backward": 360, "backward, end": 360, "optimizer": 360,
    }  # fmt: skip
    assert max(found.values()) == timeline.peak(0).total


@pytest.mark.parametrize(("size", "at_once"), [(400, True), (300, False)])
def test_room_for_all_gradients_at_once_has_a_window_of_its_own(size: int, at_once: bool):
    timeline = Timeline(1)
    timeline.begin("forward")
    saved = [storage("activations") for _ in range(4)]
    for one in saved:
        timeline.resize(one, 300)
    timeline.begin("backward")
    early, partition = storage("gradients"), storage("gradients")
    timeline.resize(saved[-1], 0)
    if not at_once:
        timeline.resize(early, 50)
    timeline.resize(partition, size)
    for one in saved[:-1]:
        timeline.resize(one, 0)
    found = {name: moment.total for name, moment in timeline.windows(0).items()}
    assert found.pop(AT_ONCE, 0) == (900 + size if at_once else 0)
    assert found == {
        "forward": 1200, "backward, begin": 1200, "backward": 900 if at_once else 1250,
        "backward, end": 400 if at_once else 350,
    }  # fmt: skip


def test_what_lies_in_host_memory_is_in_no_number_of_the_device():
    timeline = Timeline(1)
    state, kept, short = storage("optimizer state"), storage("activations"), storage("gradients")
    timeline.begin("forward")
    state.on_host = short.on_host = True
    for one, size in ((state, 1000), (kept, 30), (short, 200), (short, 0), (kept, 40)):
        timeline.resize(one, size)
    assert timeline.peak(0).storages == {kept: 40}, "not when most lies on the host"
    host = timeline.host_peak(0)
    assert host.storages == {state: 1000, short: 200} and host.total == 1200
    assert {name: moment.total for name, moment in timeline.windows(0).items()} == {"forward": 40}

"""How often the ranks are asked, by hand."""

import pytest
import torch.distributed as dist

from stratlab_spec.exit_codes import TERMINATED, Stopped, exit_code
from trainer.distributed.consensus import Agreement, Pace


def asked_behind(unit_s: float, until: int, done: int = 0) -> list[int]:
    """The steps behind which it is asked, where each takes `unit_s`."""
    pace, found = Pace(done), []
    for step in range(done + 1, until + 1):
        if step >= pace.due:
            found.append(step)
            pace.set_back(step, unit_s)
    return found


@pytest.mark.parametrize(
    ("unit_s", "until", "behind"),
    [
        (10.0, 5, [1, 2, 3, 4, 5]),
        (0.6, 4, [1, 2, 3, 4]),
        (0.3, 10, [1, 3, 6, 9]),
        (0.001, 300, [1, 3, 7, 15, 31, 63, 127, 191, 255]),
    ],
)
def test_it_is_asked_once_a_second_or_behind_every_longer_step(unit_s, until, behind):
    assert asked_behind(unit_s, until) == behind


def test_one_process_agrees_with_itself(monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    agreement = Agreement(10.0, from_step=4)
    agreement.end_step(5)
    assert (agreement.step, agreement.save_agreed) == (5, False)
    agreement.want_save()
    agreement.ask_now()
    assert agreement.save_agreed
    agreement.end_step(6)
    assert not agreement.save_agreed
    agreement.want_stop()
    with pytest.raises(Stopped) as stopped:
        agreement.ask_now()
    assert agreement.step == 6 and exit_code(stopped.value) == TERMINATED


def test_short_steps_that_are_recorded_are_left_alone(monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    agreement = Agreement(10.0, every_s=1.0)
    agreement.end_step(1)
    agreement.want_stop()
    for step in range(2, 50):
        agreement.end_step(step, recording=True)
    with pytest.raises(Stopped):
        agreement.end_step(50)
    slow = Agreement(10.0, every_s=0.0)
    slow.end_step(1)
    slow.want_stop()
    with pytest.raises(Stopped):
        slow.end_step(2, recording=True)

"""What is asked for and cannot be is named by its option, all at once; and a lock and a rename that two want."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab_spec.exit_codes import exit_code
from stratlab_spec.settings.config import ConfigError
from trainer.prepare.destination import Overtaken, Place, acquire, observe, publish
from trainer.prepare.origin import find_os_error
from trainer.prepare.request import read_request

TOKENS = ("--dataset", "arithmetic", "--tokenize", "qwen_tiny")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--name", "x"), ["--dataset"]),
        (("--dataset", "a/b", "--name", "x", "--nam", "y"), ["--nam"]),
        (("--dataset", "digits", "--name", "x"), ["digits"]),
        (("--model", "/data/net", "--name", "x"), ["/data/net"]),
        (("--dataset", "a/b", "--name", "x", "--stale-after-s", "0"), ["--stale-after-s"]),
        (("--dataset", "a b", "--name", "..", "--to", "/nowhere"), ["a b", "--name", "/nowhere"]),
        (("--dataset", "a/b", "--name", "x", "--seq-len", "64", "--no-packing"), ["--seq-len, --no-packing"]),
        ((*TOKENS, "--name", "x", "--subset", "s", "--seq-len", "4"), ["--name", "--subset", "--seq-len 4"]),
        (("--model", "org/net", "--tokenize", "qwen_tiny"), ["--model", "--dataset"]),
    ],
)
def test_wrong_options(tmp_path: Path, arguments: tuple[str, ...], named: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        read_request(["--to", str(tmp_path), *arguments])
    problems = refused.value.problems
    assert len(problems) == len(named), problems
    assert all(name in problem for name, problem in zip(named, problems, strict=True)), problems


def test_a_wrapped_error_of_the_disk_is_found() -> None:
    wrapped = RuntimeError("generating the data set failed")
    wrapped.__cause__ = OSError(28, "No space left on device")
    found = find_os_error(wrapped)
    assert found is not None and exit_code(found) == 13


def test_a_lock_whose_number_is_used_again_is_not_the_first_owner_s(tmp_path: Path) -> None:
    """Paused, outnumbered, everything cleared away, number 1 taken by a third one."""
    first, second = acquire(tmp_path / "locks", 1, 10), acquire(tmp_path / "locks", 2, 10)
    assert first is not None and second is not None
    second.release()
    third = acquire(tmp_path / "locks", 1, 10)
    assert third is not None
    first.release()
    third.check()
    with pytest.raises(Overtaken):
        first.check()


def test_a_lock_that_was_never_written_goes_stale_too(tmp_path: Path) -> None:
    (tmp_path / "1").touch()
    seen = observe(tmp_path, None, 0.0, stale_after_s=5)
    assert seen is not None and seen.is_stale(5.1)


def test_the_rename_has_one_winner(tmp_path: Path) -> None:
    place = Place(tmp_path, "pets")
    for token in ("a", "b"):
        place.partial(token).mkdir(parents=True)
        (place.partial(token) / "file").write_text(token)
    publish(place, place.partial("a"))
    with pytest.raises(Overtaken):
        publish(place, place.partial("b"))
    assert (place.folder / "file").read_text() == "a"

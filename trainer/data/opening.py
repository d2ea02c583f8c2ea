"""Opens pictures before anything depends on them, on all cores, and finds those that stand in two splits.

A run opens what it holds out, up to AT_ONCE pictures: they are met after its last step. Larger data sets are opened
by `trainer.prepare`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from trainer.data.images import ImageData
from trainer.data.stored_pictures import StoredPictures, Unreadable, name_all

AT_ONCE = 5_000
COMPARED = 50_000
"""Pictures of the train split whose sizes a run looks at."""
CHUNK = 512


def say_nothing(_: object) -> None:
    """For a caller who waits for no progress."""


def check_held_out(data: ImageData, test_alone: bool = False, prepared: bool = False) -> list[str]:
    """A line for each thing that is odd about the pictures that a run holds out; all of them are opened.

    Args:
        test_alone: the validation split is not looked at.
        prepared: they have been opened when they were written.

    Raises:
        DataMissing: some cannot be decoded; names the first ten.
    """
    train, validation, test = data.train.stored, data.validation.stored, data.test.stored
    if not train or not validation or not test:  # they are made, not read
        return []
    held = [test] if test_alone else [validation, test]
    count = sum(map(len, held))
    if count > AT_ONCE:
        said = f"{test.data}: {count:,} held-out pictures, of which a run opens {AT_ONCE:,} at most before it trains"
        return [] if prepared else [f"{said}: none was opened; charts/prepare opens all"]
    if broken := [failure for pictures in held for failure in find_unreadable(pictures)]:
        raise name_all(broken, count)
    if len(train) > COMPARED:
        return []
    of_train = [train, validation] if validation.split == train.split else [train]
    return [*describe_repeated(test, of_train)]


def describe_repeated(test: StoredPictures, train: list[StoredPictures]) -> Iterator[str]:
    """One line where test pictures stand in the train split too, whose parts are given."""
    if count := _count_repeated(test, train):
        yield (
            f"{test.data}: {count:,} of the {len(test):,} test pictures stand in the train split too, byte for byte; "
            "what is learnt by heart raises the test accuracy"
        )


def _count_repeated(test: StoredPictures, train: list[StoredPictures]) -> int:
    """By a hash of their bytes, which is taken where the sizes are equal."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        sizes = [*pool.map(test.size, range(len(test)))]
        known = {*sizes} - {0}
        learnt: set[bytes] = set()
        for part in train:
            alike = [i for i, size in enumerate(pool.map(part.size, range(len(part)))) if size in known]
            learnt.update(pool.map(_hash, [part] * len(alike), alike))
        found = [i for i, size in enumerate(sizes) if size]
        return sum(digest in learnt for digest in pool.map(_hash, [test] * len(found), found))


def _hash(pictures: StoredPictures, index: int) -> bytes:
    return hashlib.sha256(pictures.content(index)).digest()


def find_unreadable(
    pictures: StoredPictures, report: Callable[[int], None] = say_nothing
) -> list[Unreadable]:
    """Those that cannot be decoded, in their order.

    Args:
        report: is given how many pictures have been opened, now and then.
    """

    def look(index: int) -> Unreadable | None:
        try:
            pictures.open(index)
        except Unreadable as failure:
            return failure
        return None

    found: list[Unreadable] = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for start in range(0, len(pictures), CHUNK):
            some = range(start, min(start + CHUNK, len(pictures)))
            found += [failure for failure in pool.map(look, some) if failure]
            report(some.stop)
    return found

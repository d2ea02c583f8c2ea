"""Kept runs: what an archive holds, and that its pages are today's. All pages: tests/nightly/programs/test_pages.py."""

import random
import tarfile

import pytest

from experiments.kept_runs import ARCHIVE, MOST_BYTES, TooLarge, pack_runs
from experiments.pages import list_kept
from tests.experiments.drawn_pages import check_pages
from tests.stratlab.example_run import build_run_dir

KEPT = list(list_kept())


def test_archives_are_small_and_name_no_folder_of_a_machine():
    assert KEPT
    for _, folder, _ in KEPT:
        assert (folder / ARCHIVE).stat().st_size <= MOST_BYTES
        with tarfile.open(folder / ARCHIVE) as archive:
            texts = [archive.extractfile(name).read() for name in archive.getnames()]
        assert not any(word in text for text in texts for word in (b"/experiments-results", b"/tmp/"))


def test_the_smallest_is_drawn_as_it_is_kept(tmp_path):
    _, folder, parts = min(KEPT, key=lambda kept: (kept[1] / ARCHIVE).stat().st_size)
    check_pages(folder, parts, tmp_path)


def test_what_is_too_large_is_not_kept(tmp_path):
    run = build_run_dir(tmp_path / "demo", "ddp", "ddp")
    (run / "noise.json").write_bytes(random.Random(0).randbytes(2 * MOST_BYTES))
    with pytest.raises(TooLarge):
        pack_runs(run.parent, tmp_path / ARCHIVE, tmp_path, with_traces=False)
    assert not (tmp_path / ARCHIVE).exists()

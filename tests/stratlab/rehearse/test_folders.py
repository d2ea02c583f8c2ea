"""What a rehearsal makes, and takes away again."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab.rehearse.folders import check_free, make_folder, remove_empty, replaced
from stratlab.user_error import UserError
from tests.codes import find_codes


def test_only_what_was_made_and_stayed_empty_is_removed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    made = make_folder(tmp_path / "mine" / "a" / "b") + make_folder(tmp_path / "mine" / "a" / "c")
    assert made == [tmp_path / "mine" / name for name in ("a", "a/b", "a/c")]
    (tmp_path / "mine" / "a" / "c" / "file").touch()
    remove_empty(made)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "mine" / n for n in ("", "a", "a/c", "a/c/file")]
    (tmp_path / "mine" / "a" / "c" / "file").unlink()
    remove_empty(made)
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as failure:
        make_folder(tmp_path / "file" / "x")
    assert find_codes(failure.value) == ["SL-folder-not-made"]


def test_a_finished_run_is_not_overwritten(tmp_path: Path) -> None:
    def refused(replace: bool) -> list[str]:
        with pytest.raises(UserError) as failure:
            check_free(tmp_path, replace=replace)
        return find_codes(failure.value)

    check_free(tmp_path, replace=False)
    (tmp_path / "config.json").write_text('{"config": {}, "resolved": {}}')
    check_free(tmp_path, replace=False)  # an attempt that did not finish may be followed by another
    (tmp_path / "summary.json").touch()
    assert refused(replace=False) == ["SL-run-finished"]
    check_free(tmp_path, replace=True)
    for file in tmp_path.iterdir():
        file.unlink()
    (tmp_path / "thesis.tex").touch()
    assert refused(replace=True) == ["SL-folder-taken"]


@pytest.mark.parametrize("new", [True, False])
def test_an_old_run_comes_back_when_no_new_one_came_into_being(tmp_path: Path, new: bool) -> None:
    run_dir = tmp_path / "ddp"
    run_dir.mkdir()
    (run_dir / "old").touch()
    with pytest.raises(RuntimeError), replaced(run_dir, replace=True):
        assert not run_dir.exists()
        if new:
            run_dir.mkdir()
        raise RuntimeError
    assert (run_dir / "old").exists() is not new
    assert list(tmp_path.iterdir()) == [run_dir]

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab.api import UserError, compare, open_run


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run"):
        open_run(tmp_path)
    with pytest.raises(UserError, match="no run"):
        compare(tmp_path)
    assert list(tmp_path.iterdir()) == []

from __future__ import annotations

import json

from tests.codes import find_codes
from trainer.launch.ledger import explain_planted_kill


def test_only_a_kill_of_this_start_is_told_as_planted(tmp_path):
    assert explain_planted_kill(tmp_path / "none", 0.0) == ""
    for name, times in (("kill@8_1", (100.0, 300.0)), ("slow@3_0", (500.0,))):
        lines = [json.dumps({"t": t, "attempt": 1, "kind": name[:4], "step": 8, "rank": 1}) for t in times]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    said = explain_planted_kill(tmp_path, 200.0)
    assert find_codes(said) == ["SL-kill-planted"] and "rank 1 " in said and "step 8 " in said
    assert explain_planted_kill(tmp_path, 400.0) == ""
    (tmp_path / "kill@9_0").write_text('{"t": 500.0, "attempt"')  # cut
    assert explain_planted_kill(tmp_path, 400.0) == ""
    (tmp_path / "kill@7_0").mkdir()
    assert explain_planted_kill(tmp_path, 400.0) == ""

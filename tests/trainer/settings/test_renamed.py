"""Old names of settings are read for one version, wherever a setting may stand, and each is said once."""

import json
from pathlib import Path

import pytest

from stratlab.run_directory.files import read_config as read_run
from stratlab_spec.settings import old_names
from stratlab_spec.settings.config import Config, rename_variables
from stratlab_spec.settings.files import read_pairs, read_settings_file, schema
from stratlab_spec.settings.old_names import RENAMED, take_new_names
from tests.codes import find_codes

OLD = {"distil_weight": "0.7", "distil_temperature": "3", "cp_kind": "allgather", "oom_ladder": "true"}
NEW = {"distill_alpha": "0.7", "distill_temperature": "3", "cp_method": "allgather", "oom_fallback": "true"}


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    old_names._say.cache_clear()


def test_old_names_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    assert OLD.keys() == RENAMED.keys()
    assert take_new_names(OLD) == take_new_names(OLD) == NEW
    assert find_codes(caplog.text) == ["SL-setting-renamed"] and all(name in caplog.text for name in OLD)
    assert take_new_names({"cp_method": "ulysses", "cp_kind": "allgather"}) == {"cp_method": "ulysses"}


def test_variables_files_options_and_charts_may_have_old_names(tmp_path: Path) -> None:
    given = {"TRAINER_RUN": "try", "TRAINER_OOM_LADDER": "true"}
    assert Config.from_env(given).oom_fallback
    rename_variables(given)
    assert given == {"TRAINER_RUN": "try", "TRAINER_OOM_FALLBACK": "true"}
    file = tmp_path / "settings.yaml"
    for text in (json.dumps(OLD), json.dumps({"run": {"config": OLD}})):
        file.write_text(text)
        assert read_settings_file(file).settings == NEW
    assert read_pairs([f"{name}={value}" for name, value in OLD.items()]) == NEW
    entries = schema()["properties"]
    for old, new in RENAMED.items():
        assert entries[old]["deprecated"] and "default" not in entries[old]
        assert entries[old].get("type") == entries[new].get("type")


def test_a_run_of_the_version_before_is_read_by_today_s_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"config": OLD, "resolved": {}}))
    assert read_run(tmp_path, [])["config"] == NEW

"""What is in the kit, and what it refuses to be."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from benchmarks.gpu import kit
from benchmarks.gpu.stages import PARTS, STAGES
from tests.codes import find_codes

LOCK = dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", Path("requirements/gpu_kit.txt").read_text(), re.M))


def test_the_code_alone_is_enough_and_what_is_wrong_with_a_kit_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "kit"
    kit.copy_code(folder)
    with pytest.raises(kit.BadKit) as refused:
        kit.check_kit(folder)
    assert find_codes(refused.value) == ["SL-kit-part-missing"]
    (folder / "site").mkdir()
    kit.check_kit(folder)
    operations = ("benchmarks/gpu/operations/vit_base-single.json", "stratlab/analysis/analyze.py")
    for name in (*operations, "trainer/worker.py", *(f"benchmarks/gpu/{stage.name}.py" for stage in STAGES)):
        assert (folder / name).is_file(), name
    assert (folder / "start").stat().st_mode & 0o111
    assert not list(folder.rglob("__pycache__")), "what Python compiled here stays here"
    (folder / "site" / "core.cpython-311-x86_64-linux-gnu.so").touch()
    monkeypatch.setattr(kit, "LARGEST_MB", 1.0)
    with pytest.raises(kit.BadKit) as refused:
        kit.check_kit(folder)
    assert find_codes(refused.value) == ["SL-kit-python", "SL-kit-too-large"]
    assert "site/core.cpython-311-x86_64-linux-gnu.so" in str(refused.value)


def test_the_packages_have_the_project_s_pins_and_nothing_is_carried_that_is_there():
    homes = (Path(), Path("distributions/stratlab-trainer"))
    projects = [tomllib.loads((home / "pyproject.toml").read_text())["project"] for home in homes]
    wanted = " ".join(name for project in projects for name in project["dependencies"])
    pins = dict(re.findall(r"([a-z0-9-]+)==([0-9.]+)", wanted))
    carried = {"pydantic", "pydantic-core", "msgspec", "deepspeed", "tenacity"}
    assert carried <= LOCK.keys() and {name: pins.get(name, pin) for name, pin in LOCK.items()} == LOCK
    there = set(re.findall(r"^([a-z0-9-]+)==", Path("requirements/bare.txt").read_text(), re.M))
    assert not there & (LOCK.keys() | carried)


def test_each_part_has_a_start_line_in_the_readme():
    for part in PARTS:
        assert f"./start --part {part} --out RESULTS" in kit.build_readme()


def test_a_kit_takes_no_other_folder_s_place(tmp_path):
    out = tmp_path / "kit"
    kit.check_replaceable(out)
    (out / "trainer").mkdir(parents=True)
    kit.check_replaceable(out)
    (out / "results").mkdir()
    with pytest.raises(kit.BadKit) as refused:
        kit.build_kit(out, tmp_path / "no-uv")
    assert find_codes(refused.value) == ["SL-kit-replaces"] and (out / "results").is_dir()

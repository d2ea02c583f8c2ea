"""What is in the kit, and what it refuses to be."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from benchmarks.gpu import kit
from benchmarks.gpu.stages import PARTS, STAGES

LOCK = re.findall(r"^([a-z0-9-]+)==([^ ]+)", Path("requirements/gpu_kit.txt").read_text(), re.M)


@pytest.fixture
def folder(tmp_path) -> Path:
    kit.copy_code(tmp_path / "kit")
    (tmp_path / "kit" / "site").mkdir()
    return tmp_path / "kit"


def test_the_code_alone_is_enough(folder):
    for name in (
        "start",
        "trainer/worker.py",
        "stratlab/analysis/analyze.py",
        "benchmarks/gpu/operations/vit_base-single.json",
    ):
        assert (folder / name).is_file(), name
    assert all((folder / "benchmarks" / "gpu" / f"{stage.name}.py").is_file() for stage in STAGES)
    assert (folder / "start").stat().st_mode & 0o111
    kit.check_kit(folder)


def test_what_python_compiled_here_stays_here(tmp_path, monkeypatch):
    for name in (*kit.CODE, "benchmarks/gpu/__pycache__"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "benchmarks/gpu/__pycache__/run.cpython-311.pyc").touch()
    (tmp_path / "benchmarks/gpu/run.py").touch()
    monkeypatch.setattr(kit, "ROOT", tmp_path)
    kit.copy_code(tmp_path / "kit")
    found = {path.name for path in (tmp_path / "kit" / "benchmarks").rglob("*") if path.is_file()}
    assert found == {"run.py"}


def test_the_packages_have_the_project_s_pins():
    homes = (Path(), Path("distributions/stratlab-trainer"))
    projects = [tomllib.loads((home / "pyproject.toml").read_text())["project"] for home in homes]
    wanted = chain(*(project["dependencies"] for project in projects))
    pins = dict(re.findall(r"([a-z0-9-]+)==([0-9.]+)", " ".join(wanted)))
    locked = dict(LOCK)
    assert {"pydantic", "pydantic-core", "msgspec", "deepspeed", "tenacity"} <= locked.keys()
    assert {name: v for name, v in locked.items() if name in pins} == {
        n: pins[n] for n in locked if n in pins
    }


def test_nothing_is_carried_that_is_there():
    there = set(re.findall(r"^([a-z0-9-]+)==", Path("requirements/bare.txt").read_text(), re.M))
    assert not there & {name for name, _ in LOCK}
    assert not there & {"pydantic", "msgspec", "datasets", "deepspeed"}


def test_a_package_for_another_python_is_refused(folder):
    (folder / "site" / "core.cpython-311-x86_64-linux-gnu.so").touch()
    with pytest.raises(kit.BadKit, match=r"site/core.cpython-311-x86_64-linux-gnu.so is not for cpython-312"):
        kit.check_kit(folder)


def test_a_kit_that_is_too_large_is_refused(folder, monkeypatch):
    monkeypatch.setattr(kit, "LARGEST_MB", 1.0)
    with pytest.raises(kit.BadKit, match=r"\d\.\d MB, allowed: below 1"):
        kit.check_kit(folder)


def test_a_kit_without_packages_is_refused(folder):
    (folder / "site").rmdir()
    with pytest.raises(kit.BadKit, match="site is missing"):
        kit.check_kit(folder)


def test_each_part_has_a_start_line_in_the_readme():
    for part in PARTS:
        assert f"./start --part {part} --out RESULTS" in kit.build_readme()


def test_a_kit_takes_no_other_folder_s_place(tmp_path):
    out = tmp_path / "kit"
    kit.check_replaceable(out)
    (out / "trainer").mkdir(parents=True)
    (out / "start").touch()
    kit.check_replaceable(out)
    (out / "results").mkdir()
    with pytest.raises(kit.BadKit, match="holds results, which is no part of a kit"):
        kit.build_kit(out, tmp_path / "no-uv")
    assert (out / "results").is_dir()

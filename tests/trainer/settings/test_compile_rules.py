from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stratlab_spec.layout.mesh_rules import broken_rules
from stratlab_spec.models.model_specs import model_problems
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.library_rules import compile_problems, refused_compositions
from tests.codes import find_codes


@pytest.fixture
def machine(tmp_path):
    """A folder for programs, and one with Python's headers."""
    for name in ("bin", "include"):
        (tmp_path / name).mkdir()
    (tmp_path / "include" / "Python.h").write_text("")
    return tmp_path


def said(machine, *programs: str, gpu: bool, env: dict[str, str] | None = None, **settings) -> list[str]:
    for name in programs:
        (machine / "bin" / name).write_text("#!/bin/sh\n")
        (machine / "bin" / name).chmod(0o755)
    config = Config(**{"run": "try", "compile": True} | settings)
    env = {"PATH": str(machine / "bin")} | (env or {})
    return compile_problems(config, env, gpu=gpu, headers=machine / "include")


@pytest.mark.parametrize(
    ("gpu", "program", "env"),
    [
        (False, "g++", {}),
        (True, "clang", {}),
        (True, "mycc", {"CC": "mycc -O1"}),
        (False, "cl", {"CXX": "cl"}),
    ],
)
def test_where_there_is_what_it_calls_nothing_is_said(machine, gpu, program, env):
    assert said(machine, program, gpu=gpu, env=env) == []


@pytest.mark.parametrize(
    ("gpu", "program", "env", "named"),
    [
        (False, "gcc", {}, "CXX"),
        (True, "g++", {}, "gcc or clang (CC"),
        (True, "gcc", {"CC": "icx"}, "icx (CC"),
    ],
)
def test_a_missing_compiler_is_named(machine, gpu, program, env, named):
    (problem,) = said(machine, program, gpu=gpu, env=env)
    assert find_codes(problem) == ["SL-compiler-absent"] and named in problem
    assert said(machine, gpu=gpu, compile=False) == said(machine, gpu=gpu, mode="evaluate") == []
    (machine / "include" / "Python.h").unlink()
    assert f"{machine}/include/Python.h" in said(machine, gpu=gpu)[0]


def test_the_image_is_what_it_is_about(tmp_path):
    """`python -m trainer` with the image's PATH, on which there is no compiler: 2, before torch is imported."""
    for name in ("python", "python3"):
        (tmp_path / name).symlink_to(sys.executable)
    given = {
        "RUN": "try",
        "COMPILE": "true",
        "MODEL": "cnn",
        "IMAGE_SIZE": "8",
        "RESULTS": str(tmp_path / "r"),
    }
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": os.getcwd()}
    env |= {f"TRAINER_{name}": value for name, value in given.items()}
    command = [sys.executable, "-X", "importtime", "-m", "trainer"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "SL-compiler-absent" in find_codes(done.stdout + done.stderr)
    assert "| torch\n" not in done.stderr


@pytest.mark.parametrize("recomputed", ["none", "selective", "blocks"])
def test_recomputed_blocks_that_cannot_be_compiled_are_refused_with_the_reason(recomputed):
    config = Config(run="try", compile=True, activation_checkpointing=recomputed)

    def refused(**block) -> list[str]:
        return find_codes([*refused_compositions(config, **({"experts": False} | block))])

    some = recomputed != "none"
    assert refused() == []
    assert (
        refused(experts=True) == ["SL-compile-experts"] * some and refused(cp=2) == ["SL-compile-cp"] * some
    )
    assert refused(tp=2) == ["SL-compile-tp"] * (recomputed == "blocks")
    eager = config.model_copy(update={"compile": False})
    assert list(refused_compositions(eager, experts=True, cp=2, tp=2)) == []


def test_layout_and_model_ask_for_these_rules():
    given = {"run": "try", "dataset": "arithmetic", "compile": True, "activation_checkpointing": "blocks"}
    nd = {"model": "qwen_tiny", "strategy": "nd", "layout": "given", "seq_len": 64}
    assert "SL-compile-cp" in find_codes(broken_rules(Config(**given, **nd, cp=2), 2))
    found = model_problems(Config(**given, model="qwen_moe_tiny", strategy="fsdp"))
    assert find_codes(found) == ["SL-compile-experts"]

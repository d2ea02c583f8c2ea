from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from trainer.launch.preflight import check
from trainer.layout.mesh import broken_rules
from trainer.settings.compile_rules import compile_problems, refused_compositions
from trainer.settings.config import Config, ConfigError
from trainer.shapes.model_shapes import model_problems


@pytest.fixture
def machine(tmp_path):
    """A folder for programs, and one with Python's headers."""
    for name in ("bin", "include"):
        (tmp_path / name).mkdir()
    (tmp_path / "include" / "Python.h").write_text("")
    return tmp_path


def install(machine: Path, *names: str) -> None:
    for name in names:
        (machine / "bin" / name).write_text("#!/bin/sh\n")
        (machine / "bin" / name).chmod(0o755)


def said(machine: Path, *, gpu: bool, env: dict[str, str] | None = None, **settings) -> list[str]:
    config = Config(**{"run": "try", "compile": True} | settings)
    env = {"PATH": str(machine / "bin")} | (env or {})
    return compile_problems(config, env, gpu=gpu, headers=machine / "include")


@pytest.mark.parametrize(
    ("gpu", "programs", "env"),
    [
        (False, ("g++",), {}),
        (True, ("gcc",), {}),
        (True, ("clang",), {}),
        (True, ("mycc",), {"CC": "mycc -O1"}),
        (False, ("clang++",), {"CXX": "clang++"}),
    ],
)
def test_where_there_is_what_it_calls_nothing_is_said(machine, gpu, programs, env):
    install(machine, *programs)
    assert said(machine, gpu=gpu, env=env) == []


@pytest.mark.parametrize(
    ("gpu", "programs", "env", "sentence"),
    [
        (False, ("gcc",), {}, "g++ (CXX names another) is not on PATH. Use an image"),
        (True, ("g++",), {}, "gcc or clang (CC names another) is not on PATH. Use an image"),
        (True, ("gcc",), {"CC": "icx"}, "icx (CC names another) is not on PATH. Use an image"),
    ],
)
def test_a_missing_compiler_is_named(machine, gpu, programs, env, sentence):
    install(machine, *programs)
    (problem,) = said(machine, gpu=gpu, env=env)
    assert problem.startswith("TRAINER_COMPILE=true: torch.compile compiles at the first step, and ")
    assert sentence in problem and problem.endswith("or leave it out")


def test_missing_headers_are_named_as_well(machine):
    (machine / "include" / "Python.h").unlink()
    (problem,) = said(machine, gpu=True)
    assert "is not on PATH; " in problem and f"{machine / 'include' / 'Python.h'} is not there" in problem


def test_nothing_is_asked_of_a_run_that_compiles_nothing(machine):
    assert said(machine, gpu=True, compile=False) == said(machine, gpu=True, mode="evaluate") == []


@pytest.mark.parametrize("text", [False, True], ids=["images", "text"])
def test_it_is_part_of_the_check_before_the_ranks(tmp_path, text):
    model = {"model": "qwen_tiny", "dataset": "arithmetic"} if text else {"model": "cnn", "image_size": 8}
    config = Config(run="try", strategy="ddp", compile=True, results=str(tmp_path), **model)
    with pytest.raises(ConfigError, match=r"TRAINER_COMPILE=true: .* g\+\+ .* is not on PATH"):
        check(config, 2, {"PATH": str(tmp_path)})


def test_the_image_is_what_it_is_about(tmp_path):
    """`python -m trainer` with the image's PATH, on which there is no compiler: 2, before torch is imported."""
    for name in ("python", "python3"):
        (tmp_path / name).symlink_to(sys.executable)
    env = {
        "PATH": str(tmp_path), "HOME": str(tmp_path), "TRAINER_RUN": "try", "TRAINER_COMPILE": "true",
        "TRAINER_MODEL": "cnn", "TRAINER_IMAGE_SIZE": "8", "TRAINER_RESULTS": str(tmp_path / "results"),
        "PYTHONPATH": os.getcwd(),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "trainer"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 2 and "TRAINER_COMPILE=true" in done.stdout + done.stderr
    assert "| torch\n" not in done.stderr
    assert Path(sysconfig.get_paths()["include"]).name.startswith("python3")


@pytest.mark.parametrize("recomputed", ["none", "selective", "every_2", "blocks"])
def test_recomputed_blocks_that_cannot_be_compiled_are_refused_with_the_reason(recomputed):
    config = Config(run="try", compile=True, activation_checkpointing=recomputed)

    def refused(**block) -> list[str]:
        return list(refused_compositions(config, **({"experts": False} | block)))

    assert refused() == []
    for block, reason in (({"experts": True}, "experts' dispatch"), ({"cp": 2}, "context parallelism")):
        assert len(refused(**block)) == (recomputed != "none")
        assert all(
            reason in sentence and f"={recomputed}: not both" in sentence for sentence in refused(**block)
        )
    assert len(refused(tp=2)) == (recomputed not in ("none", "selective"))
    eager = config.model_copy(update={"compile": False})
    assert list(refused_compositions(eager, experts=True, cp=2, tp=2)) == []


def test_layout_and_model_ask_for_these_rules():
    given = {"run": "try", "dataset": "arithmetic", "compile": True, "activation_checkpointing": "blocks"}
    nd = {"model": "qwen_tiny", "strategy": "nd", "layout": "given", "seq_len": 64}
    found = broken_rules(Config(**given, **nd, cp=2), 2)
    assert [sentence for sentence in found if "TRAINER_COMPILE=true" in sentence and "context" in sentence]
    found = model_problems(Config(**given, model="qwen_moe_tiny", strategy="fsdp"))
    assert [sentence for sentence in found if "TRAINER_COMPILE=true" in sentence and "experts" in sentence]

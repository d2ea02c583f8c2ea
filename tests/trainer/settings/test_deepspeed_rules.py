from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.settings.config import Config, ConfigError
from trainer.settings.deepspeed_rules import (
    broken_deepspeed_rules,
    find_quantizer,
    has_gpu,
    missing_rank_variables,
)


@pytest.fixture
def env(tmp_path):
    """A machine on which DeepSpeed can compile."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("c++", "nvcc", "ninja"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    return {"PATH": str(tools), "HOME": str(tmp_path)}


def said(env: dict[str, str], *, world_size=4, per_node=2, gpu=True, **settings) -> str:
    config = Config(**{"run": "try", "strategy": "zeropp", "precision": "fp32"} | settings)
    problems = broken_deepspeed_rules(config, world_size, per_node, env=env, gpu=gpu)
    return "\n".join(problems)


FINE = [
    {},
    {"gpu": False},
    {"world_size": 1, "per_node": 1},
    {"world_size": 8, "per_node": 2},
    {"zeropp": "hpz,qwz,qgz"},
    *({"zeropp": "qwz", "precision": each} for each in ("auto", "fp32", "bf16", "bf16_native", "fp16")),
    {"zeropp": "qwz", "world_size": 2, "per_node": 1},
    {"zeropp": "qgz", "world_size": 2, "per_node": 1},
    {"strategy": "zero3", "gpu": False},
    {"strategy": "zero2", "compile": True},
    {"strategy": "ddp", "compile": True},
]


@pytest.mark.parametrize("settings", FINE)
def test_what_can_run_is_not_refused(settings, env):
    assert said(env, **settings) == ""


WRONG = [
    (
        {"zeropp": "qwz", "gpu": False},
        "TRAINER_ZEROPP='qwz': qwz needs DeepSpeed's CUDA quantizer and there is no GPU",
    ),
    ({"zeropp": "hpz,qgz", "gpu": False}, "qgz needs DeepSpeed's CUDA quantizer and there is no GPU"),
    ({"zeropp": "qgz", "per_node": 4}, "qgz saves bytes between nodes, and this is one node"),
    ({"zeropp": "qgz", "world_size": 8, "per_node": 3}, "3 processes per node do not divide 8 processes"),
    ({"world_size": 4, "per_node": 3}, "3 processes per node do not divide 4 processes"),
    ({"world_size": 2, "per_node": 1}, "hpz has no effect with 1 process per node, this would be zero3"),
    (
        {"world_size": 2, "per_node": 2},
        "hpz has no effect on one node, whose gathers never leave it",
    ),
    ({"zeropp": "hpz,qwz", "per_node": 4}, "use strategy zero3, or more nodes"),
    ({"compile": True}, "TRAINER_COMPILE=true: not with strategy zeropp"),
    ({"compile": True, "strategy": "zero3"}, "TRAINER_COMPILE=true: not with strategy zero3"),
]


@pytest.mark.parametrize(("settings", "sentence"), WRONG)
def test_what_cannot_run_is_refused_with_a_sentence(settings, sentence, env):
    found = said(env, **settings)
    assert sentence in found and len(found.splitlines()) == 1


def test_all_broken_rules_are_named_at_once(env):
    found = said(
        env, zeropp="hpz,qwz,qgz", strategy="zeropp", compile=True, gpu=False, per_node=2, world_size=2
    )
    assert len(found.splitlines()) == 5


def test_a_missing_compiler_is_named_only_where_something_is_compiled(env):
    Path(env["PATH"], "ninja").unlink()
    assert "compiled at the first start, and ninja cannot be found" in said(env, zeropp="hpz,qwz")
    assert said(env, zeropp="hpz") == said(env, strategy="zero3", offload="optimizer") == ""


def test_a_quantizer_that_the_image_has_needs_no_compiler(env, tmp_path, monkeypatch):
    """Found where DeepSpeed looks for one, by a package of that name here; DeepSpeed itself is not imported."""
    Path(env["PATH"], "nvcc").unlink()
    package = tmp_path / "packages" / "deepspeed"
    built = package / "ops" / "quantizer" / "quantizer_op.so"
    built.parent.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)
    assert "nvcc cannot be found" in said(env, zeropp="hpz,qwz") and find_quantizer() is None
    built.write_bytes(b"")
    assert said(env, zeropp="hpz,qwz") == "" and find_quantizer() == built


@pytest.mark.parametrize("name", ["TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR"])
def test_a_cache_that_cannot_be_written_is_refused_on_a_gpu(name, env, tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    env[name] = str(in_the_way / "cache")
    assert f"{name}='{in_the_way / 'cache'}': not writable for user {os.getuid()}" in said(
        env, strategy="zero2"
    )
    assert said(env, strategy="zero2", gpu=False) == said(env, strategy="fsdp") == ""


def test_a_home_that_cannot_be_made_is_refused(env, tmp_path):
    (tmp_path / "file").write_text("")
    env["HOME"] = str(tmp_path / "file" / "nobody")
    assert said(env, strategy="zero1").count("not writable") == 2


def test_a_lock_left_by_a_killed_build_is_named(env, tmp_path):
    lock = tmp_path / ".cache" / "torch_extensions" / "py311" / "quantizer" / "lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("")
    assert f"{lock}: left by a build that was killed" in said(env, zeropp="qwz")
    assert said(env, zeropp="hpz") == ""


def test_a_gpu_is_seen_by_its_device(tmp_path):
    (tmp_path / "nvidiactl").write_text("")
    assert not has_gpu(tmp_path)
    (tmp_path / "nvidia0").write_text("")
    assert has_gpu(tmp_path)


def test_a_rank_without_its_variables_is_told_so_instead_of_asked_for_mpi4py():
    whole = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert missing_rank_variables(whole) == []
    assert missing_rank_variables(whole | {"RANK": ""})[0].startswith("RANK: not set; start the ranks with")
    assert missing_rank_variables({})[0].startswith(
        "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT: not"
    )


def test_the_rules_are_part_of_the_preflight_check_and_need_no_torch(tmp_path):
    code = (
        "import sys\n"
        "from trainer.settings.config import Config\n"
        "from trainer.launch.preflight import check\n"
        f"config = Config(run='try', strategy='zeropp', zeropp='qwz', results={str(tmp_path)!r}, precision='fp32')\n"
        "try:\n"
        "    check(config, 1, {})\n"
        "except Exception as failure:\n"
        "    print(failure)\n"
        "assert not {'torch', 'deepspeed'} & sys.modules.keys()\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "qwz needs DeepSpeed's CUDA quantizer" in found


def test_a_config_error_is_what_the_preflight_check_raises(tmp_path):
    from trainer.launch.preflight import check

    config = Config(run="try", strategy="zero3", compile=True, results=str(tmp_path), global_batch_size=96)
    with pytest.raises(ConfigError, match="TRAINER_COMPILE=true: not with strategy zero3"):
        check(config, 1, {})

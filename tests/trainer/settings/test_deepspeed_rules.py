from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stratlab_spec.settings.config import Config
from stratlab_spec.settings.library_rules import (
    broken_deepspeed_rules,
    find_quantizer,
    has_gpu,
    missing_rank_variables,
)
from tests.codes import find_codes


@pytest.fixture
def env(tmp_path):
    """A machine on which DeepSpeed can compile."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("c++", "nvcc", "ninja"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    return {"PATH": str(tools), "HOME": str(tmp_path)}


def codes(env: dict[str, str], *, world_size=4, per_node=2, gpu=True, **settings) -> list[str]:
    config = Config(**{"run": "try", "strategy": "zeropp", "precision": "fp32"} | settings)
    return find_codes(broken_deepspeed_rules(config, world_size, per_node, env=env, gpu=gpu))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gpu": False},
        {"world_size": 1, "per_node": 1},
        {"world_size": 8, "per_node": 2},
        {"zeropp": "hpz,qwz,qgz"},
        {"zeropp": "qwz", "precision": "bf16_native"},
        {"zeropp": "qgz", "world_size": 2, "per_node": 1},
        {"strategy": "zero3", "gpu": False},
        {"strategy": "zero2", "compile": True},
        {"strategy": "ddp", "compile": True},
    ],
)
def test_what_can_run_is_not_refused(settings, env):
    assert codes(env, **settings) == []


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"zeropp": "hpz,qgz", "gpu": False}, "SL-quantizer-no-gpu"),
        ({"zeropp": "qgz", "per_node": 4}, "SL-qgz-one-node"),
        ({"zeropp": "qgz", "world_size": 8, "per_node": 3}, "SL-qgz-indivisible"),
        ({"zeropp": "qgz", "reduce_dtype": "bf16"}, "SL-qgz-reduce-dtype"),
        ({"world_size": 4, "per_node": 3}, "SL-hpz-indivisible"),
        ({"world_size": 2, "per_node": 1}, "SL-hpz-one-process"),
        ({"world_size": 2, "per_node": 2}, "SL-hpz-one-node"),
        ({"zeropp": "hpz,qwz", "per_node": 4}, "SL-hpz-one-node"),
        ({"compile": True, "strategy": "zero3"}, "SL-deepspeed-compile"),
    ],
)
def test_what_cannot_run_is_refused_with_a_sentence(settings, code, env):
    assert codes(env, **settings) == [code]


def test_all_broken_rules_are_named_at_once(env):
    assert len(codes(env, zeropp="hpz,qwz,qgz", compile=True, gpu=False, world_size=2)) == 5


def test_a_missing_compiler_is_named_only_where_something_is_compiled(env):
    Path(env["PATH"], "ninja").unlink()
    assert codes(env, zeropp="hpz,qwz") == ["SL-quantizer-compiler"]
    assert codes(env, zeropp="hpz") == codes(env, strategy="zero3", offload="optimizer") == []


def test_a_quantizer_that_the_image_has_needs_no_compiler(env, tmp_path, monkeypatch):
    """Found where DeepSpeed looks for one, by a package of that name here; DeepSpeed itself is not imported."""
    Path(env["PATH"], "nvcc").unlink()
    package = tmp_path / "packages" / "deepspeed"
    built = package / "ops" / "quantizer" / "quantizer_op.so"
    built.parent.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)
    assert codes(env, zeropp="hpz,qwz") == ["SL-quantizer-compiler"] and find_quantizer() is None
    built.write_bytes(b"")
    assert codes(env, zeropp="hpz,qwz") == [] and find_quantizer() == built


def test_folders_that_cannot_be_written_are_refused_on_a_gpu(env, tmp_path):
    (tmp_path / "file").write_text("")
    below = {"TRITON_CACHE_DIR": str(tmp_path / "file" / "cache")}
    assert codes(env | below, strategy="zero2") == ["SL-deepspeed-cache"]
    assert codes(env | {"HOME": str(tmp_path / "file" / "x")}, strategy="zero1") == ["SL-deepspeed-cache"] * 2
    assert codes(env | below, strategy="zero2", gpu=False) == codes(env | below, strategy="fsdp") == []


def test_a_lock_left_by_a_killed_build_is_named(env, tmp_path):
    lock = tmp_path / ".cache" / "torch_extensions" / "py311" / "quantizer" / "lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("")
    assert codes(env, zeropp="qwz") == ["SL-quantizer-lock"] and codes(env, zeropp="hpz") == []


def test_a_gpu_is_seen_by_its_device(tmp_path):
    (tmp_path / "nvidiactl").write_text("")
    assert not has_gpu(tmp_path)
    (tmp_path / "nvidia0").write_text("")
    assert has_gpu(tmp_path)


def test_a_rank_without_its_variables_is_told_so_instead_of_asked_for_mpi4py():
    whole = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert missing_rank_variables(whole) == []
    (said,) = missing_rank_variables(whole | {"RANK": ""})
    assert find_codes(said) == ["SL-rank-variables"] and said.startswith("RANK: ")


def test_the_rules_are_part_of_the_preflight_check_and_need_no_torch(tmp_path):
    code = (
        "import sys\n"
        "from stratlab_spec.settings.config import Config\n"
        "from trainer.launch.preflight import check\n"
        f"config = Config(run='try', strategy='zeropp', zeropp='qwz', results={str(tmp_path)!r}, precision='fp32')\n"
        "try:\n"
        "    check(config, 1, {})\n"
        "except Exception as failure:\n"
        "    print(failure)\n"
        "assert not {'torch', 'deepspeed'} & sys.modules.keys()\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "SL-quantizer-no-gpu" in find_codes(found)

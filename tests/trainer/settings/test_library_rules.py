"""What DeepSpeed and torch.compile need of settings and machine, and what ZeRO++ sends in few bits."""

import sys
from pathlib import Path

import pytest

from stratlab_spec.layout.mesh_rules import broken_rules
from stratlab_spec.models.model_specs import model_problems
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.library_rules import (
    block_bytes,
    broken_deepspeed_rules,
    compile_problems,
    count_blocks,
    describe_quantized,
    find_quantizer,
    is_quantized,
    missing_rank_variables,
    refused_compositions,
)
from tests.codes import find_codes


def put_programs(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def machine(tmp_path):
    """A folder for programs, and one with Python's headers."""
    (put_programs(tmp_path / "include") / "Python.h").write_text("")
    return tmp_path


def said(machine, *programs: str, gpu: bool, env: dict[str, str] | None = None, **settings) -> list[str]:
    env = {"PATH": str(put_programs(machine / "bin", *programs))} | (env or {})
    config = Config(**{"run": "try", "compile": True} | settings)
    return compile_problems(config, env, gpu=gpu, headers=machine / "include")


@pytest.fixture
def env(tmp_path):
    tools = put_programs(tmp_path / "bin", "c++", "nvcc", "ninja")
    return {"PATH": str(tools), "HOME": str(tmp_path)}


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


@pytest.mark.parametrize("recomputed", ["none", "selective", "blocks"])
def test_recomputed_blocks_that_cannot_be_compiled_are_refused_with_the_reason(recomputed):
    config = Config(run="try", compile=True, activation_checkpointing=recomputed)

    def refused(**block) -> list[str]:
        return find_codes([*refused_compositions(config, **({"experts": False} | block))])

    some = recomputed != "none"
    assert refused() == []
    assert refused(experts=True) == ["SL-compile-experts"] * some
    assert refused(cp=2) == ["SL-compile-cp"] * some
    assert refused(tp=2) == ["SL-compile-tp"] * (recomputed == "blocks")
    eager = config.model_copy(update={"compile": False})
    assert list(refused_compositions(eager, experts=True, cp=2, tp=2)) == []


def test_layout_and_model_ask_for_these_rules():
    given = {"run": "try", "dataset": "arithmetic", "compile": True, "activation_checkpointing": "blocks"}
    nd = {"model": "qwen_tiny", "strategy": "nd", "layout": "given", "seq_len": 64}
    assert "SL-compile-cp" in find_codes(broken_rules(Config(**given, **nd, cp=2), 2))
    found = model_problems(Config(**given, model="qwen_moe_tiny", strategy="fsdp"))
    assert find_codes(found) == ["SL-compile-experts"]


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


def test_a_missing_compiler_is_named_only_where_something_is_compiled(env):
    Path(env["PATH"], "ninja").unlink()
    assert codes(env, zeropp="hpz,qwz") == ["SL-quantizer-compiler"]
    assert codes(env, zeropp="hpz") == codes(env, strategy="zero3", offload="optimizer") == []


def test_a_quantizer_that_the_image_has_needs_no_compiler(env, tmp_path, monkeypatch):
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


def test_a_rank_without_its_variables_is_told_so_instead_of_asked_for_mpi4py():
    whole = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert missing_rank_variables(whole) == []
    (said,) = missing_rank_variables(whole | {"RANK": ""})
    assert find_codes(said) == ["SL-rank-variables"] and said.startswith("RANK: ")


def test_a_shard_of_less_than_two_blocks_is_sent_as_it_is():
    assert is_quantized(1024, 1) and not is_quantized(1023, 1)
    assert is_quantized(4093, 4) and not is_quantized(4092, 4), "the first shard is the larger one"
    assert [count_blocks(elements, 4) for elements in (4096, 4097, 8192, 8193)] == [2, 3, 4, 5]
    assert block_bytes("qwz") == 516 and block_bytes("qgz") == 260


def test_what_is_told_of_a_model():
    """By hand, 2 shards: a matrix of 4096, one of 4096 that is frozen, a norm of 64."""
    sizes = [(4096, True), (4096, False), (64, True)]
    found = describe_quantized(["hpz", "qwz", "qgz"], sizes, 2, persistent_elements=100)
    block = {"block": 512}
    assert found == {
        "qwz": block | {"bits": 8, "parameters": 2, "of_parameters": 3, "elements_pct": 100 * 8192 / 8256},
        "qgz": block | {"bits": 4, "parameters": 1, "of_parameters": 2, "elements_pct": 100 * 4096 / 4160},
    }
    # parameters that stay whole are not gathered in blocks
    found = describe_quantized(["qwz", "qgz"], [(4096, True), (8192, True)], 2, persistent_elements=4096)
    assert (found["qwz"]["parameters"], found["qgz"]["parameters"]) == (1, 2)


def test_a_lock_left_by_a_killed_build_is_named(env, tmp_path):
    lock = tmp_path / ".cache" / "torch_extensions" / "py311" / "quantizer" / "lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("")
    assert codes(env, zeropp="qwz") == ["SL-quantizer-lock"] and codes(env, zeropp="hpz") == []

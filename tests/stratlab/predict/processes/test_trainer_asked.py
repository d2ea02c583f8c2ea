"""`stratlab predict` of runs that cannot start, and of those that the trainer counts."""

import pytest

from stratlab.predict import counting
from stratlab.predict.counting import count_operations
from tests.codes import find_codes
from tests.stratlab.raised import raised
from tests.stratlab_spec.memory.operations_files import ask, write_file

ALLOWS_ALL = 'case "$*" in *check*) echo "{}"; exit;; esac'
"""Of a program that plays the trainer: no run is refused."""
OF_CHART = {"model": "vit_base", "seq_len": "2048", "reduce_dtype": "bf16"}
UNCOUNTED = (*(f"--set=run.config.{name}={text}" for name, text in OF_CHART.items()), "--count")
VIT_BASE = ("vit_base", "--gpus", "8", "--set", "reduce_dtype=bf16")


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Plays the trainer: a program that writes a file; the real one: tests/trainer/counting/ranks."""
    made = write_file(tmp_path / "made", {"model": "vit_base"}, labels=10, channels=1)
    program = tmp_path / "python"
    play(program, f'for last; do :; done\necho "1 s  count 1 of 8" >&2\ncp {made} "$last"')
    program.chmod(0o755)
    monkeypatch.setattr(counting, "explain_trainer", lambda python, env: "")
    monkeypatch.setattr("sys.executable", str(program))
    return program


def play(program, script):
    program.write_text(f"#!/bin/sh\n{ALLOWS_ALL}\n{script}\n")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("qwen2.5-3b", "--set", "strategy=zero2", "--set", "tp=2", "--count"), "zero2: tp"),
        (("vit_huge", "--set", "strategy=ddp", "--set", "image_size=385"), "ddp: image_size=385"),
        (("charts/ddp", "--set", "run.config.offload=optimizer"), "ddp: run.config.offload=optimizer"),
    ],
)
def test_what_the_trainer_refuses_of_what_was_typed_ends_with_2(call, arguments, named, monkeypatch):
    monkeypatch.setattr(counting, "_run_trainer", lambda *_: pytest.fail("it was counted"))
    code, out, err = call(*arguments)
    assert (code, out) == (2, "") and named in err and "TRAINER_" not in err


def test_what_cannot_be_counted_is_not_known(call):
    code, out, _ = call("vit_huge", "--set", "strategy=ddp", "--set", "reduce_dtype=bf16", "--count")
    assert code == 3 and "reduce_dtype=bf16" in out


def test_what_no_file_answers_is_counted_and_kept(call, tmp_path, program):
    code, _, err = call("charts/fsdp", *UNCOUNTED)
    assert code == 0 and "count 1 of 8" in err
    assert len(list((tmp_path / "cache/stratlab/operations").iterdir())) == 1
    program.unlink()
    assert call("charts/fsdp", *UNCOUNTED)[0] == 0, "the second time nothing is counted"


def test_of_a_model_it_counts_only_when_told_to(call, answers, program):
    code, out, err = call(*VIT_BASE)
    assert code == 3 and "count 1 of 8" not in err and "--count" in out
    code, out, err = call(*VIT_BASE, "--count", "--set", "strategy=fsdp")
    assert code == 0 and ["fsdp", "fits"] in [line.split()[:2] for line in out.splitlines()]
    found = answers(*VIT_BASE)
    assert found["fsdp"]["verdict"] == "fits", "kept"
    assert {*found} == {"ddp", "zero1", "zero2", "fsdp", "zero3", "hsdp", "zeropp"}
    _, _, err = call(*VIT_BASE, "--count")
    assert "(5 of 5" in err and "zero3: " in err


@pytest.mark.parametrize(("code", "offered"), [(2, False), (1, True)], ids=["refused", "failed"])
def test_the_trainer_s_complaints_are_in_the_words_typed_and_what_it_refuses_is_not_offered(
    code, offered, call, program
):
    play(program, f"echo TRAINER_COMPILE=true: cannot be counted >&2\nexit {code}")
    out = call("charts/fsdp", *UNCOUNTED)[1]
    assert "run.config.compile=true" in out and ("trainer.count" in out) is offered
    typed = ("--set", "dp_shard=4", "--set", "strategy=hsdp", "--set", "seq_len=9")
    out = call("vit_huge", *typed, "--count")[1]
    assert "TRAINER_" not in out and "run.config" not in out


def test_weights_of_a_cluster_are_told_before_anything_is_started(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(
        counting, "_run_trainer", lambda *_: started.append(1) or (_ for _ in ()).throw(OSError)
    )
    weights = ask({"strategy": "ddp", "model_path": "/results/_prepared/vit"})
    assert find_codes(raised(count_operations, weights, tmp_path)) == ["SL-count-no-weights"] and not started
    with pytest.raises(OSError):  # of data a count reads nothing
        count_operations(ask({"strategy": "ddp", "dataset_path": "/results/_prepared/food101"}), tmp_path)

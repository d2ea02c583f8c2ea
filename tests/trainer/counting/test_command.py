"""The command's refusals and its help: nothing is counted here."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from trainer.counting.command import EXAMPLE, _build_say, _file_problems, _parse, _settings, main
from trainer.counting.rules import read_countable
from trainer.settings.config import ConfigError

TINY = {"TRAINER_RUN": "x", "TRAINER_MODEL": "qwen_tiny", "TRAINER_DATASET": "arithmetic"}


def problems(ranks=8, rank=0, per_node=8, **settings):
    env = TINY | {f"TRAINER_{name.upper()}": value for name, value in settings.items()}
    with pytest.raises(ConfigError) as failure:
        read_countable(env, ranks, rank, per_node)
    return failure.value.problems


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"strategy": "zero2", "offload": "all"}, "TRAINER_OFFLOAD=all"),
        (
            {"strategy": "ddp", "reduce_dtype": "bf16"},
            "TRAINER_REDUCE_DTYPE=bf16: cannot be counted with ddp",
        ),
        ({"strategy": "fsdp", "compile": "true"}, "TRAINER_COMPILE=true"),
        ({"strategy": "fsdp", "model": "qwen_moe_tiny", "precision": "fp32"}, "TRAINER_PRECISION=fp32"),
        ({"strategy": "fsdp", "mode": "evaluate"}, "TRAINER_MODE='evaluate'"),
        ({"strategy": "fsdp", "model": "cnn_lstm", "dataset": "digits"}, "TRAINER_MODEL='cnn_lstm'"),
        ({"strategy": "zeropp", "zeropp": "qgz"}, "TRAINER_ZEROPP='qgz'"),
        ({"strategy": "fsdp", "global_batch_size": "36"}, "TRAINER_GLOBAL_BATCH_SIZE=36"),
        ({"strategy": "single"}, "strategy single runs in 1 process, but there are 8"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_name(settings, named):
    settings = {"micro_batch_size": "1", "global_batch_size": "8", **settings}
    assert any(named in problem for problem in problems(**settings)), named


def test_all_broken_rules_come_at_once():
    found = problems(ranks=4, rank=4, per_node=3, strategy="fsdp", compile="true", global_batch_size="33")
    for named in ("--rank=4", "--per-node=3", "TRAINER_COMPILE", "GLOBAL_BATCH_SIZE=33"):
        assert any(named in problem for problem in found), (named, found)


def test_unknown_settings_come_with_the_command_s_own():
    found = problems(rank=9, stratgy="fsdp")
    assert any("did you mean TRAINER_STRATEGY" in one for one in found)
    assert any("--rank=9" in one for one in found)


def test_the_command_ends_with_2_and_says_why(capsys, tmp_path):
    arguments = ["--ranks", "2", "--set", "strategy=fsdp", "--set", "compile=true"]
    assert main(arguments, {}) == 2
    assert "TRAINER_COMPILE=true" in capsys.readouterr().err
    assert main(["--ranks", "1", "--set", "strategy"], {}) == 2
    assert "expected name=value" in capsys.readouterr().err
    assert main(["--ranks", "1", "--json", str(tmp_path / "no" / "file")], {}) == 2
    assert "its folder is not there" in capsys.readouterr().err


def test_what_begins_is_told_at_once_and_what_goes_on_every_five_seconds(capsys):
    begin, say = _build_say()
    begin("loading torch and DeepSpeed")
    say("step 1 of 2: forward, 10 operators")
    begin("building the model")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" s  ")[1] for line in lines] == ["loading torch and DeepSpeed", "building the model"]


def test_a_count_says_what_it_does_before_torch_is_there():
    command = [sys.executable, "-m", "trainer.count", "--ranks", "1", "--set", "strategy=single"]
    command += ["--set", "dataset=synthetic", "--set", "model=vit_tiny"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as count:
        assert count.stderr.readline().endswith(" s  loading torch and DeepSpeed\n")
        count.kill()


def test_set_goes_before_the_environment(capsys):
    env = {"TRAINER_STRATEGY": "fsdp", "TRAINER_COMPILE": "true"}
    assert main(["--ranks", "2", "--set", "strategy=nonsense"], env) == 2
    assert "TRAINER_STRATEGY='nonsense'" in capsys.readouterr().err


def test_help_has_an_example_and_needs_no_torch():
    code = (
        "import sys, contextlib, trainer.counting.command\n"
        "with contextlib.suppress(SystemExit): trainer.counting.command.main(['--help'], {})\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "python -m trainer.count --ranks 8 --set strategy=fsdp" in done.stdout


def test_the_examples_of_the_help_can_be_counted():
    """As a shell reads them, up to where the counting begins."""
    lines = EXAMPLE.replace("\\\n", " ").splitlines()
    examples = [shlex.split(line) for line in lines if line.startswith("  python -m trainer.count ")]
    assert len(examples) == 3 and max(map(len, EXAMPLE.splitlines())) <= 120
    for words in examples:
        given = _parse(words[3:])
        assert read_countable(_settings({}, given.set), given.ranks, given.rank, given.ranks)


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_counted(monkeypatch, tmp_path):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    given = _parse(["--ranks", "1", "--operations", str(tmp_path / "x.json")])
    assert list(_file_problems(given)) == [f"--operations={tmp_path}/x.json: its folder cannot be written"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--operations", "nowhere/x.json"), "--operations=nowhere/x.json: its folder is not there"),
        (("--operations", "x.json", "--json", "y.json"), "leave out --rank and --json"),
        (("--operations", "tests"), "--operations=tests: is a folder, expected a file"),
        (("--json", "tests"), "--json=tests: is a folder, expected a file"),
    ],
)
def test_an_operations_file_that_cannot_be_written_is_refused_before_anything_is_counted(
    options, named, capsys
):
    settings = [
        word
        for name in ("model=qwen_tiny", "dataset=arithmetic", "strategy=fsdp")
        for word in ("--set", name)
    ]
    batch = ["--set", "micro_batch_size=1", "--set", "global_batch_size=8"]
    assert main(["--ranks", "8", *settings, *batch, *options], {}) == 2
    assert named in capsys.readouterr().err


def test_every_setting_that_nobody_has_left_out_matters():
    from trainer.counting.operations_key import NEVER, build_key, defaults_of, settings_that_matter
    from trainer.settings.config import Config

    assert set(NEVER) <= Config.model_fields.keys()
    config = Config.from_env(TINY | {"TRAINER_STRATEGY": "fsdp"})
    found = settings_that_matter(config, ("model_layers",))
    assert {"strategy", "seq_len", "precision", "offload", "clip_norm"} <= found.keys()
    assert not {"model_layers", "micro_batch_size", "image_size", "lr", "run"} & found.keys()
    assert build_key(found) != build_key(found | {"seq_len": 8}) and defaults_of(found)["precision"] == "bf16"

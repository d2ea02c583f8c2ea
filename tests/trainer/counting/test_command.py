"""The command's refusals and its help: nothing is counted here."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from stratlab_spec.memory.profiles import IRRELEVANT
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes
from trainer.memory_estimation.command import EXAMPLE, _parse, _settings, main
from trainer.memory_estimation.rules import build_key, defaults_of, read_countable, settings_that_matter

TINY = {"TRAINER_RUN": "x", "TRAINER_MODEL": "qwen_tiny", "TRAINER_DATASET": "arithmetic"}


def problems(ranks=8, rank=0, per_node=8, **settings):
    env = TINY | {f"TRAINER_{name.upper()}": value for name, value in settings.items()}
    with pytest.raises(ConfigError) as failure:
        read_countable(env, ranks, rank, per_node)
    return failure.value.problems


@pytest.mark.parametrize(
    ("settings", "code", "named"),
    [
        ({"strategy": "ddp", "reduce_dtype": "bf16"}, "SL-count-reduce-dtype", "TRAINER_REDUCE_DTYPE=bf16"),
        ({"compile": "true"}, "SL-count-compile", "TRAINER_COMPILE=true"),
        ({"model": "qwen_moe_tiny", "precision": "fp32"}, "SL-count-experts-fp32", "TRAINER_PRECISION=fp32"),
        ({"mode": "evaluate"}, "SL-count-mode", "TRAINER_MODE='evaluate'"),
        ({"model": "cnn_lstm", "dataset": "digits"}, "SL-count-lstm", "TRAINER_MODEL='cnn_lstm'"),
        ({"global_batch_size": "36"}, "SL-axes-batch-indivisible", "TRAINER_GLOBAL_BATCH_SIZE=36"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_name(settings, code, named):
    found = problems(**{"strategy": "fsdp", "micro_batch_size": "1", "global_batch_size": "8"} | settings)
    assert any(find_codes(problem) == [code] and named in problem for problem in found), found


def test_all_broken_rules_come_at_once():
    found = problems(ranks=4, rank=4, per_node=3, strategy="fsdp", compile="true", global_batch_size="33")
    codes = {"SL-count-rank-outside", "SL-count-per-node-indivisible", "SL-count-compile"}
    assert codes <= set(find_codes(found)) and any("--rank=4" in problem for problem in found)
    unknown = problems(rank=9, stratgy="fsdp")
    assert any("TRAINER_STRATEGY" in one for one in unknown) and any("--rank=9" in one for one in unknown)


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (("--set", "strategy"), "SL-count-set", "strategy"),
        (("--json", "/not/there/file"), "SL-count-file-no-folder", "--json=/not/there/file"),
        (("--operations", "tests"), "SL-count-file-is-folder", "--operations=tests"),
        (("--operations", "x.json", "--json", "y.json"), "SL-count-operations-alone", "--json"),
        (("--per-node", "0"), "SL-count-number", "'0'"),
    ],
)
def test_an_option_is_refused_before_anything_is_counted(options, code, named, capsys):
    settings = ("model=qwen_tiny", "dataset=arithmetic", "micro_batch_size=1", "global_batch_size=8")
    sets = [word for name in (*settings, "strategy=fsdp") for word in ("--set", name)]
    try:
        ended = main(["--ranks", "8", *sets, *options], {"TRAINER_STRATEGY": "nonsense"})
    except SystemExit as stopped:
        ended = stopped.code
    told = capsys.readouterr().err
    assert ended == 2 and find_codes(told) == [code] and named in told


def test_help_needs_no_torch():
    code = (
        "import sys, contextlib, trainer.memory_estimation.command\n"
        "with contextlib.suppress(SystemExit): trainer.memory_estimation.command.main(['--help'], {})\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_the_examples_of_the_help_can_be_counted():
    """As a shell reads them, up to where the counting begins."""
    lines = EXAMPLE.replace("\\\n", " ").splitlines()
    examples = [shlex.split(line) for line in lines if line.startswith("  python -m trainer.count ")]
    assert len(examples) == 3 and max(map(len, EXAMPLE.splitlines())) <= 120
    for words in examples:
        given = _parse(words[3:])
        assert read_countable(_settings({}, given.set), given.ranks, given.rank, given.ranks)


def test_every_setting_that_nobody_has_left_out_matters():
    assert set(IRRELEVANT) <= Config.model_fields.keys()
    config = Config.from_env(TINY | {"TRAINER_STRATEGY": "fsdp"})
    found = settings_that_matter(config, ("model_layers",))
    assert {"strategy", "seq_len", "precision", "offload", "clip_norm"} <= found.keys()
    assert not {"model_layers", "micro_batch_size", "image_size", "lr", "run"} & found.keys()
    assert build_key(found) != build_key(found | {"seq_len": 8}) and defaults_of(found)["precision"] == "bf16"

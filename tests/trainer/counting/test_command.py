"""The command's refusals and its help: nothing is counted here."""

import pytest

from stratlab_spec.settings.config import ConfigError
from tests.codes import find_codes
from trainer.memory_estimation.command import main
from trainer.memory_estimation.rules import read_countable

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

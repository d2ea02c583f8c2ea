"""The lines of other guides in experiments/guide-examples: ours next to each of them mean the same."""

import re
from pathlib import Path

import pytest

from experiments.catalogue import read_yaml
from stratlab_spec.settings.config import Config
from tests.documents.commands import INLINE, ROOT, split
from trainer.launch.options import build_environment
from trainer.launch.preflight import read_pods

PAGE = ROOT / "experiments/guide-examples/README.md"
GUIDE = PAGE.parent / "full"
STRATEGIES = {"ddp": "ddp", "fsdp_stage2": "zero2", "fsdp_stage3": "zero3"}
PER_GPU = {"mobilenet": (16, 100), "efficientnet": (16, 100), "ensemble": (4, 100), "vgg": (8, 100)}
"""Model -> samples of one GPU and epochs, as the guides have them."""
SETTINGS = ("model", "micro_batch_size", "global_batch_size", "epochs")


def read_rows():
    section = PAGE.read_text().partition("\n## The lines of other guides\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()]
    return [row for row in rows if len(row) == 3 and row[0].startswith("`")]


def find_commands(cell, first):
    return [span for span in INLINE.findall(cell) if span.startswith(first)]


def read_line(line):
    """What a guide's line with numbers in it asks for, by our names."""
    program, model, strategy, *numbers = line.split()
    *sizes, batch, epochs = map(int, numbers)
    nodes, gpus = sizes if program == "launch_multi_node.sh" else (1, *sizes)
    return {
        "model": model,
        "strategy": STRATEGIES[strategy],
        "nodes": nodes,
        "processes": gpus,
        "micro_batch_size": batch,
        "global_batch_size": batch * gpus * nodes,
        "epochs": epochs,
    }


ROWS = read_rows()
LINES = {INLINE.findall(row[0])[0]: row for row in ROWS}
WITH_NUMBERS = [line for line in LINES if re.match(r"launch_\w+\.sh .* \d+$", line)]


def read_ours(command):
    env, _ = build_environment(split(command)[3:], {})
    return Config.from_env(env), env


def read_sweep(name):
    """A full form by the names of `read_line`."""
    sweep = read_yaml(ROOT / name)
    asked, (strategy,) = sweep["set"], sweep["matrix"]["strategy"]
    return {
        **{setting: asked[f"run.config.{setting}"] for setting in SETTINGS},
        "strategy": strategy,
        "nodes": asked["run.nodes"],
        "processes": asked["run.processesPerNode"],
    }


def test_each_of_their_programs_has_a_line_and_every_full_form_follows_one():
    programs = {line.split()[0] for line in LINES}
    assert programs == {"launch_distributed.sh", "launch_multi_node.sh", "deepspeed", "torchrun"}
    assert {line.split()[1] for line in WITH_NUMBERS} == set(PER_GPU)
    named = {Path(split(find_commands(LINES[line][2], "stratlab sweep")[0])[2]).name for line in WITH_NUMBERS}
    assert named == {file.name for file in GUIDE.glob("*.yaml")}


@pytest.mark.parametrize("line", WITH_NUMBERS)
def test_the_sweep_and_ours_on_one_machine_have_the_values_of_the_line(line):
    asked, (sweep,) = read_line(line), find_commands(LINES[line][2], "stratlab sweep")
    assert (asked["micro_batch_size"], asked["epochs"]) == PER_GPU[asked["model"]]
    assert read_sweep(split(sweep)[2]) == asked
    assert line in (ROOT / split(sweep)[2]).read_text(), "the file says what it follows"
    for command in find_commands(LINES[line][1], "python"):
        config, env = read_ours(command)
        found = {setting: getattr(config, setting) for setting in (*SETTINGS, "strategy")}
        assert found | {"nodes": 1, "processes": read_pods(env).processes_per_node} == asked

"""What examples and README ask for passes the trainer's own check, so that it means something where it is installed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratlab.cli import app
from stratlab.helm import find_helm
from tests.charts.rendering import CHARTS, pick, render
from tests.documents.commands import read_commands, split
from tests.documents.examples import FROM_CHARTS, gpu_command, judge, render_told, write_photos


@pytest.mark.parametrize("command", FROM_CHARTS)
def test_charts_render_as_told_and_the_trainer_takes_it(command, tmp_path):
    charts = [Path(word).name for word in split(command) if word.startswith("charts/")]
    release = charts[0] if "rehearse" in command else split(command)[2]
    job = render_told(command, charts[0], release)
    if charts[0] != "prepare" and "run.config.teacher" not in command:
        judge(job, TRAINER_RESULTS=str(tmp_path))


@pytest.mark.parametrize("chart", ["zeropp", "lora", "llm-5d"])
def test_a_chart_as_it_is_means_something(chart, tmp_path):
    job = pick(render(find_helm(), CHARTS / chart), "PyTorchJob")
    asked = {"TRAINER_INIT": "scratch"} if chart == "lora" else {}  # which weights is for the user to say
    judge(job, TRAINER_RESULTS=str(tmp_path), **asked)


def test_the_gpu_command_with_data_of_its_kind(tmp_path):
    command = gpu_command()
    (chart, *_) = [Path(word).name for word in split(command) if word.startswith("charts/")]
    job, data = render_told(command, chart, chart), write_photos(tmp_path / "data", 4000)
    judge(job, TRAINER_RESULTS=str(tmp_path / "results"), TRAINER_DATASET_PATH=str(data))


LINES = [command for command, files in read_commands().items() if " run " in command and "README.md" in files]


def test_readme_s_lines_of_stratlab_run_are_taken_by_the_trainer(tmp_path):
    """Those on images with the whole check; the others need weights and tokenizers of the hub."""
    chat, pets = tmp_path / "chat.jsonl", write_photos(tmp_path / "pets", 1000)
    chat.write_text(
        '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}\n'
    )
    llama = tmp_path / "my-llama"
    llama.mkdir()
    (llama / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    names = {"/data/pets": str(pets), "chat.jsonl": str(chat), "/models/my-llama": str(llama)}
    assert len(LINES) == 5
    for line in LINES:
        words = [names.get(word, word) for word in split(line)[1:]]
        done = CliRunner().invoke(app, [*words, "--dry-run", "--json"])
        assert done.exit_code == 0, (line, done.output)
        shown = json.loads(done.stdout)
        for chart in (
            shown["strategies"] if shown["config"].get("task") != "text" and "lora" not in words else ()
        ):
            given = [f"--set=run.config.{name}={value}" for name, value in shown["config"].items()]
            given += [f"--set=run.processesPerNode={shown['processes_per_node']}"]
            job = pick(render(find_helm(), CHARTS / chart, given), "PyTorchJob")
            judge(job, TRAINER_RESULTS=str(tmp_path / "results"))

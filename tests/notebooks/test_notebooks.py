"""The notebooks as they are committed, and what two_t4 decides on a machine that is not this one.

All cells in their order are executed by tests/nightly/rehearsals/test_documents.py. What neither shows: pip's work on
Kaggle, the downloads, and training on two T4.
"""

import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from notebooks import bare_machine
from notebooks.__main__ import main
from notebooks.execution import FOLDER, WITHOUT_OUTPUTS, list_notebooks, remove_machine
from notebooks.workbench import MOST_PARTS, _choose_colour, _join_small
from tests.documents.commands import ROOT
from tests.notebooks.cells import TWO_T4, find_cell

PATH = re.compile(r"(?<![\w.<])/(?:home|root|tmp|work|usr|opt|var|mnt|Users|kaggle)/[\w.-]+")
MOST_BYTES = 300_000


def find_problems(text: str) -> set[str]:
    """What is wrong with a notebook's file."""
    content: dict[str, Any] = json.loads(text)
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    wrong = {
        "path": PATH.search(text),
        "order": [cell["execution_count"] for cell in code] != list(range(1, len(code) + 1)),
        "error": any(output["output_type"] == "error" for cell in code for output in cell["outputs"]),
        "no output": not any(cell["outputs"] for cell in code),
        "no hardware": "**Hardware of the outputs below:**" not in "".join(content["cells"][0]["source"]),
        "no plot": not any(
            "image/png" in output.get("data", {}) for cell in code for output in cell["outputs"]
        ),
        "no exercise": not any("**Exercise:**" in "".join(cell["source"]) for cell in content["cells"]),
        "colours": "\\u001b[" in text,
        "bytes": len(text) > MOST_BYTES,
    }
    return {name for name, found in wrong.items() if found}


@pytest.mark.parametrize("path", list_notebooks(), ids=lambda path: path.stem)
def test_it_can_be_read_without_being_run(path: Path) -> None:
    assert find_problems(path.read_text()) == set()


def test_each_has_its_row_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/notebooks.md").read_text()
    assert WITHOUT_OUTPUTS == ("two_t4",)
    for path in FOLDER.glob("*.ipynb"):
        assert page.count(f"(../notebooks/{path.name})") == 1, path.name
    assert main(["apo"]) == 2 and "api" in capsys.readouterr().err


def test_what_a_cell_says_is_of_no_machine(tmp_path: Path) -> None:
    said = f"run directory: {tmp_path}/results/ddp in {tmp_path}\n[rank1]:[W1126 03:06:06.1 socket.cpp:469] timed out\n"
    cleaned = remove_machine(f"\x1b[1m{said}\x1b[0mdone\n", tmp_path)
    assert cleaned == "run directory: results/ddp in .\ndone\n"
    assert remove_machine(f"{ROOT}/charts/ddp", tmp_path) == "charts/ddp"


def test_a_plot_joins_small_parts_and_keeps_their_sum() -> None:
    table = pd.DataFrame({f"part {number}": [float(number), 1.0] for number in range(9)}, index=["a", "b"])
    joined = _join_small(table)
    assert (
        list(joined) == ["part 4", "part 5", "part 6", "part 7", "part 8", "rest"]
        and len(list(joined)) == MOST_PARTS
    )
    assert joined.sum(axis=1).tolist() == table.sum(axis=1).tolist()
    names = ("parameters MiB", "gradient", "optimizer state")
    assert [_choose_colour(name, 5) for name in names] == [_choose_colour(name, 1) for name in names]


def test_it_is_kept_without_outputs() -> None:
    content = json.loads(TWO_T4.read_text())
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert len(code) > 4
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_the_machine_s_torch_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages are missing and torch is there: pip is told to keep it, and is not asked for it."""
    asked: list[list[str]] = []
    monkeypatch.setattr(bare_machine, "run", lambda *words: asked.append([str(word) for word in words]))
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/helm")
    bare_machine.install(ROOT)
    assert asked == [], "nothing is installed where it is there"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    versions = {"torch": "2.9.0+cu126", "torchvision": "0.24.0+cu126"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    bare_machine.install(ROOT)
    assert Path("kept.txt").read_text() == "torch==2.9.0+cu126\ntorchvision==0.24.0+cu126\n"
    packages, projects = asked
    assert packages[1:6] == ["-m", "pip", "install", "--quiet", "--constraint"]
    names = {word.split("==")[0] for word in packages[7:]}
    assert {"deepspeed", "transformers", "mlflow", "msgspec"} <= names
    assert not names & {"torch", "torchvision"}
    assert "--no-deps" in projects and str(ROOT) in {str(Path(word)) for word in projects}


@pytest.mark.parametrize("there", [True, False])
def test_a_secret_comes_from_kaggle_s_store(
    there: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class UserSecretsClient:
        def get_secret(self, name: str) -> str:
            if not there:
                raise LookupError(name)
            return f"the value of {name}"

    store = types.SimpleNamespace(UserSecretsClient=UserSecretsClient)
    monkeypatch.setitem(sys.modules, "kaggle_secrets", store)
    monkeypatch.setattr(bare_machine, "ON_KAGGLE", True)
    monkeypatch.setattr("os.environ", environ := dict[str, str]())
    bare_machine.read_secret("HF_TOKEN")
    assert environ == ({"HF_TOKEN": "the value of HF_TOKEN"} if there else {})
    assert "the value" not in capsys.readouterr().out


@pytest.mark.parametrize(("gpus", "form"), [(1, "small"), (2, "full")])
def test_the_form_follows_from_the_gpus(gpus: int, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "\n".join(f"GPU {number}: Tesla T4" for number in range(gpus))
    answer = types.SimpleNamespace(returncode=0, stdout=lines)
    monkeypatch.setattr("subprocess.run", lambda *words, **options: answer)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/nvidia-smi")
    assert bare_machine.choose_form() == form


def test_the_full_form_prepares_what_the_sweep_reads(tmp_path: Path) -> None:
    from experiments.catalogue import list_experiments
    from experiments.prepared import PREPARED

    asked: list[tuple[str, ...]] = []
    space = {"OUT": tmp_path, "FORM": "full", "sys": sys, "Path": Path}
    space["run"] = lambda *words: asked.append(tuple(map(str, words)))
    exec(compile(find_cell(TWO_T4, "NEEDED ="), "cell", "exec"), space)
    (part,) = next(e.parts for e in list_experiments() if e.name == "two-t4")
    wanted = [(f"--{PREPARED[n].kind}={PREPARED[n].source}", f"--name={n}") for n in part.prepared()]
    assert sorted(words[3:5] for words in asked) == sorted(wanted)
    assert all(words[5] == f"--to={tmp_path}/runs" for words in asked)

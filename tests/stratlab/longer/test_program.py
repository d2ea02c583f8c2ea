"""The console script as a program of its own: what it imports, and how it ends."""

import subprocess
import sys

import pytest


def run_program(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_help_imports_nothing_heavy():
    modules = run_program("import sys, stratlab.cli; print(*sys.modules)").stdout.split()
    heavy = {"mlflow", "torch", "pandas", "numpy", "yaml", "psutil", "pydantic", "rich", "trainer"}
    heavy |= {"stratlab.analysis.run_analysis", "stratlab.compare.comparison", "stratlab.drawing"}
    assert "stratlab.cli" in modules and not heavy & set(modules)


def test_predictions_import_neither_torch_nor_numpy():
    code = (
        "import sys; from stratlab import cli\n"
        "sys.argv = ['stratlab', 'predict', 'qwen_tiny', '--gpus', '2', '--set', 'strategy=zero3']\n"
        "try: cli.app()\n"
        "finally: print(*sys.modules)"
    )
    modules = run_program(code).stdout.split()
    heavy = {"mlflow", "torch", "pandas", "numpy", "stratlab.drawing", "trainer"}
    assert "stratlab_spec.memory.zero3_rules" in modules and not heavy & set(modules)


@pytest.mark.parametrize(
    ("failure", "code", "is_bug"),
    [("ValueError('Exceeds the limit')", 1, True), ("OSError(28, 'No space left on device')", 13, False)],
)
def test_only_what_a_user_did_wrong_ends_with_2_and_without_a_traceback(failure, code, is_bug):
    """Exit code 2 is final for the analysis Job: what a library stumbles over must not get it."""
    done = run_program(
        "import sys; from stratlab import cli; from stratlab.analysis import run_analysis\n"
        f"def fails(*a, **k): raise {failure}\n"
        "run_analysis.analyze_run = fails; sys.argv = ['stratlab', 'analyze', 'run']; cli.main()"
    )
    assert (done.returncode, "Traceback" in done.stderr) == (code, is_bug)


@pytest.mark.parametrize(
    "interrupted",
    ["sys.meta_path.insert(0, Verbs())", "import stratlab.cli; stratlab.cli.app = end"],
    ids=["while verbs are imported", "in a verb"],
)
def test_ctrl_c_on_any_verb_is_told_in_one_line(interrupted):
    done = run_program(
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # which a shell's background job ignores
        "from stratlab.__main__ import main\n"
        "def end(): os.kill(os.getpid(), signal.SIGINT)\n"
        "class Verbs:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'stratlab.cli': end()\n"
        f"{interrupted}\n"
        "main()"
    )
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (130, "", 1)

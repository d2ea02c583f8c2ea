from __future__ import annotations

import json
import os
import subprocess
import sys


def test_predict_asks_the_trainer_for_a_model(tmp_path):
    """`--count`: of a preset of which no file ships, in its own process as a user starts it, and once alone."""
    asked = ["--model", "cnn", "--gpus", "2", "--set", "strategy=fsdp", "--json"]
    command = [sys.executable, "-m", "stratlab", "predict", *asked]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    first = subprocess.run([*command, "--count"], env=env, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert "fsdp" in first.stderr
    again = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (again.returncode, again.stderr) == (0, "")
    (answer,) = json.loads(again.stdout)
    assert (answer["name"], answer["verdict"], answer["ranks"]) == ("fsdp", "fits", 2)
    assert answer == json.loads(first.stdout)[0]

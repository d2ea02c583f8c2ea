"""What the launcher says of a rank that has failed."""

from __future__ import annotations

import numpy as np
from PIL import Image

from tests.trainer.ranks.test_launcher import ONE, launch, read_lines


def test_the_last_sentence_is_that_of_the_rank_that_failed(tmp_path):
    """One image in the middle of 400 is cut; nothing looks at it before it is its turn."""
    for index in range(400):
        path = tmp_path / "pets" / "train" / ("cat", "dog")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(index).integers(0, 255, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    cut = tmp_path / "pets" / "train" / "cat" / "102.png"
    cut.write_bytes(cut.read_bytes()[:300])
    given = {
        "TRAINER_DATASET_PATH": str(tmp_path / "pets"),
        "TRAINER_STEPS": "40",
        "TRAINER_PROFILE_STEPS": "0",
    }
    done = launch(tmp_path / "results", **ONE, **given)
    assert done.returncode == 3, done.stdout[-2000:] + done.stderr[-2000:]
    last = done.stderr.splitlines()[-1]
    assert last.startswith("rank 0: ") and f"({cut})" in last
    lines = read_lines(tmp_path / "results" / "default" / "try" / "metrics.jsonl")
    assert any(line["kind"] == "train" for line in lines), "it was not found while training"

"""The recorded steps that come with stratlab are those of today's engines: one mode per family is recorded again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stratlab_spec.memory.recording import FOLDER, read_recordings
from tests.ranks import run_ranks

TEXT = {
    "flavor": "sharded",
    "precision": "bf16",
    "lora": False,
    "activation_checkpointing": "blocks",
    "packing": True,
    "windowed": False,
    "chunks": 1,
}
IMAGES = {"precision": "bf16", "activation_checkpointing": "none", "lora": False, "mixed": True}
SPLIT = {"flavor": "nd", "tp": True, "sequence_parallel": True, "cp": "ulysses"}
NAMES = sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz"))


def record_again(name: str, mode: Mapping[str, Any], folder: Path) -> Any:
    from trainer.memory_estimation import record_families, record_nd

    if name.endswith("-nd"):
        return record_nd.record_decoder(name.removesuffix("-nd"), mode, folder)
    if name in record_families.IMAGES:
        return record_families.record_image_model(name, mode)
    return record_families.record_decoder(name, mode, folder)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_recorded_as_it_was(name: str, tmp_path: Path) -> None:
    def run() -> None:
        from trainer.memory_estimation.record_families import IMAGES as NETWORKS
        from trainer.memory_estimation.record_families import OUTSIDE

        if name in NETWORKS:
            asked: dict[str, Any] = {**IMAGES, "flavor": "whole"}
        else:
            asked = TEXT | (SPLIT if name.endswith("-nd") else {})
        kept = read_recordings(FOLDER / f"{name}.json.gz")
        most = max(sum(one.settings.get(key) == value for key, value in asked.items()) for one in kept)
        one = next(
            one for one in kept if sum(one.settings.get(key) == value for key, value in asked.items()) == most
        )
        mode = {key: value for key, value in one.settings.items() if key != "repeats"}
        again = record_again(name, mode, tmp_path)
        joined = () if name in NETWORKS else OUTSIDE  # recorded in another mode
        for segment, events in one.segments.items():
            assert segment in joined or again.segments[segment] == events, segment
        assert again.weights == {place: [tuple(row) for row in rows] for place, rows in one.weights.items()}
        assert again.data == one.data

    run_ranks(run, 1)

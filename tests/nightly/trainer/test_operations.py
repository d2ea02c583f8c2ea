"""What follows from a file's small counts, further rules: depths, engines that several counts share, windows."""

from __future__ import annotations

import json

import pytest

from tests.nightly.trainer.test_scaled_operations import BAR, CASES, PICTURES, TEXT, environment
from tests.ranks import run_ranks
from tests.trainer.counting.real_steps import make_config


def test_a_file_that_was_counted_at_another_depth_answers_for_the_model_s_own(tmp_path):
    """14 layers were asked for; vit_tiny has 4, which a run means that asks for none."""

    def run() -> None:
        from stratlab.predict.operations_file import read_operations_file
        from trainer.counting.inputs import find_pictures
        from trainer.counting.operations import build_operations
        from trainer.counting.steps import count
        from trainer.forecast.operations_file import FOLDER, find_operations

        text = f"{PICTURES} strategy=single"
        content = build_operations(environment(text, 2, 32), 1, 1, say=lambda text: None)
        (tmp_path / FOLDER).mkdir()
        path = tmp_path / FOLDER / "operations.json"
        path.write_text(json.dumps(content))
        config = make_config(
            f"{text.replace(' model_layers=14', '')} precision=bf16 micro_batch_size=6 global_batch_size=12 "
            f"results={tmp_path}"
        )
        whole = count(config, 1, 0, find_pictures(config)).peak.total
        file = read_operations_file(path)
        pod = find_operations(config, 1, 1)
        assert pod is not None and file.layers == pod.layers == 4
        for scaled in (file.peak(6, 1).total, pod.peak(config, 1).total):
            assert scaled == pytest.approx(whole, rel=BAR)
        assert file.peak(6, 1, 14).total > 2 * whole

    run_ranks(run, 1)


@pytest.mark.parametrize("strategy", ["zero1", "zero2"])
def test_room_for_all_gradients_is_foreseen_where_deep_models_take_it(strategy, tmp_path):
    """Two blocks fill a bucket. What is held from there on grows otherwise with the depth than what was held before."""
    text = (
        f"model=vit_small dataset=synthetic image_size=224 model_layers=20 precision=bf16 reduce_bucket_mib=8 "
        f"strategy={strategy}"
    )

    def run() -> None:
        from stratlab.predict.operations_file import read_operations_file
        from trainer.counting.inputs import find_pictures
        from trainer.counting.operations import build_operations
        from trainer.counting.steps import count
        from trainer.counting.timeline import AT_ONCE

        content = build_operations(environment(text, 16, 16), 1, 1, say=lambda text: None)
        assert {sample["layers"] for sample in content["samples"]} == {4, 8}
        config = make_config(f"{text} micro_batch_size=12 global_batch_size=12")
        whole = count(config, 1, 0, find_pictures(config)).peak.total
        path = tmp_path / "operations.json"
        path.write_text(json.dumps(content))
        peak = read_operations_file(path).peak(12, 1, 20)
        assert peak.window == AT_ONCE and peak.total == pytest.approx(whole, rel=0.002)
        for sample in content["samples"]:
            del sample["windows"][AT_ONCE]
        path.write_text(json.dumps(content))
        without = read_operations_file(path).peak(12, 1, 20).total
        assert without < (1 - BAR) * whole, f"without the window {100 * (without / whole - 1):+.2f} %"

    run_ranks(run, 1)


@pytest.mark.parametrize("case", ["decoder fsdp", "vit zero3"])
def test_counts_that_share_an_engine_are_those_of_an_engine_each(case):
    text = CASES.get(case, f"{PICTURES} strategy=zero3")

    def run() -> None:
        from trainer.counting.inputs import find_pictures
        from trainer.counting.steps import count, count_batches

        configs = [
            make_config(f"{text} micro_batch_size={rows} global_batch_size={16 * rows}") for rows in (1, 4, 2)
        ]
        pictures = find_pictures(configs[0])
        together = count_batches(configs, 8, 0, pictures)
        for config, found in zip(configs, together, strict=True):
            alone = count(config, 8, 0, pictures)
            assert found.config.micro_batch_size == alone.config.micro_batch_size
            for one, other in (
                (found.peak, alone.peak),
                (found.between, alone.between),
                (found.gathered, alone.gathered),
            ):
                assert one.by_cause() == other.by_cause()
            assert {name: each.by_cause() for name, each in found.windows.items()} == {
                name: each.by_cause() for name, each in alone.windows.items()
            }
            assert (found.collectives, found.waits) == (alone.collectives, alone.waits)
        assert len({found.peak.total for found in together}) == 3

    run_ranks(run, 1)


def test_the_fullest_window_is_the_peak():
    def run() -> None:
        from trainer.counting.inputs import find_pictures
        from trainer.counting.steps import count

        config = make_config(f"{TEXT} strategy=fsdp micro_batch_size=2 global_batch_size=32")
        found = count(config, 8, 0, find_pictures(config))
        assert max(one.total for one in found.windows.values()) == found.peak.total
        assert {"forward", "backward", "optimizer"} <= found.windows.keys()

    run_ranks(run, 1)

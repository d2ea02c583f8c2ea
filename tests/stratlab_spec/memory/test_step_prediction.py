"""Recorded steps: sizes as products, what rules hold, mixed layers, and a decision for every setting."""

import json
from dataclasses import replace

import pytest

from stratlab_spec.memory import step_prediction
from stratlab_spec.memory.profiles import IRRELEVANT, Question
from stratlab_spec.memory.recording import LAYERS, Recording, Weight, read_recordings, write_recordings
from stratlab_spec.memory.simulated import simulate_run
from stratlab_spec.memory.simulation import HeldMemory, simulate
from stratlab_spec.memory.step_prediction import PLAIN, NotRecorded, find_layers, find_recording, predict_step
from stratlab_spec.memory.strategy_rules import ShardedRules, WholeRules
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.fields import Settings

KEPT = [(True, "", "activations", "1024 R"), (False, "", "activations", "512 R")]
"""Of a layer: it keeps 512 bytes per row, of 1,024 for a moment."""
FREED = [
    (True, "gradient", "gradients", "4 H"),
    (False, "gradient", "gradients", "4 H"),
    (False, "", "activations", "512 R"),
]
RECOMPUTED = [(True, "", "activations", "512 R"), (False, "", "activations", "512 R")]
MODE = {"activation_checkpointing": "none", "chunks": 1}


def build_tiny(setting: str) -> Recording:
    forward, backward = (KEPT, FREED) if setting == "none" else (RECOMPUTED, FREED[:2])
    segments = {name: [] for name in ("start", "head", "head backward", "start backward")}
    segments |= {name: forward for name in LAYERS} | {f"{name} backward": backward for name in LAYERS}
    weights = {"start": [], "layer": [("weight", ["1 H"], True, True)], "head": []}
    return Recording({**MODE, "activation_checkpointing": setting}, weights, segments, ["8 R", "8 R"])


@pytest.fixture
def tiny(monkeypatch):
    both = [build_tiny("none"), build_tiny("blocks")]
    monkeypatch.setattr(step_prediction, "_read_family", lambda family: both if family == "tiny" else [])
    return both


def hold(recording: Recording, layers: int, rows: int) -> int:
    """Return the peak of single without moments, of a model whose weights have 128 numbers: one block each."""
    measured = recording.measure({"R": rows, "H": 128})
    weights = [Weight("weight", (128,), True, True)] * layers
    return simulate(measured, WholeRules(weights, 0, False, False), layers, 1).peak[0]


@pytest.mark.parametrize("layers", [2, 3, 4, 9, 40])
def test_each_layer_keeps_its_activations(tiny, layers):
    """Blocks of 512 bytes: a weight and an activation per layer, two of data, and at first one more."""
    assert hold(tiny[0], layers, rows=1) == 512 * (2 * layers + 2 + 1)


def test_sizes_are_products_in_whole_blocks(tiny):
    assert hold(tiny[0], 3, rows=65) == 3 * 512 + 2 * 1024 + 65 * 512 * 4


def test_every_second_block_keeps_nothing(tiny):
    """Of five layers 0, 2 and 4 are recomputed; the peak is in layer 3, or while gradients stay."""
    mixed = find_layers("tiny", {**MODE, "activation_checkpointing": "every_2"}, 5)
    assert [len(mixed.segments[f"{at} backward"]) for at in range(5)] == [2, 3, 2, 3, 2]
    few, many = hold(mixed, 5, rows=100), hold(tiny[0], 5, rows=100)
    assert many - few == 3 * 100 * 512


@pytest.mark.parametrize("layers", [2, 9])
def test_copies_that_autocast_keeps_live_to_the_end_of_the_forward_pass(layers):
    plain = build_tiny("none")
    cached = {name: [*plain.segments[name], (True, "cached copy", "copies", "2 H")] for name in LAYERS}
    recording = replace(plain, segments={**plain.segments, **cached})
    measured = recording.measure({"R": 1, "H": 1024})
    weights = [Weight("weight", (1024,), True, True)] * layers
    step = simulate(measured, WholeRules(weights, 0, False, False), layers, 1)
    assert step.windows["forward"][1]["copies"] == layers * 2048
    assert step.windows["backward"][1]["copies"] == 0


def test_gradients_of_frozen_weights_are_not_held():
    weights = [Weight("a", (128,), True, False), Weight("b", (256,), True, True)]
    measured = Recording(MODE, {"start": [], "head": []}, {}, ["0"]).measure({})
    assert measured.data_bytes == 0
    held = HeldMemory()
    WholeRules(weights, 2, True, False).hold_state(held)
    assert held.held == {"parameters": 1536, "optimizer state": 2048, "gradients": 1024}
    held = HeldMemory()
    ShardedRules([weights], [], 2, 2, True, True).hold_state(held)
    assert held.held == {"parameters": 1024, "optimizer state": 1024, "gradients": 512}


@pytest.mark.parametrize("accumulates", [False, True])
@pytest.mark.parametrize(
    ("replicated", "completes", "device", "host"),
    [(False, True, 0, 512), (True, True, 0, 512), (True, False, 512, 0)],
)
def test_offloaded_gradients_leave_the_device_when_all_replicas_have_summed(
    accumulates, replicated, completes, device, host
):
    layer = [Weight("a", (128,), True, False), Weight("b", (256,), True, True)]
    more = {"offloads": True, "replicated": replicated, "completes": completes}
    rules = ShardedRules([layer], [], 2, 2, accumulates, True, **more)
    held = HeldMemory()
    rules.hold_state(held)
    assert (held.host["parameters"], held.host["optimizer state"], +held.held) == (
        (1024, 1024, {"gradients": 512} if accumulates and replicated else {})
    )
    rules.enter(held, "last backward", 0)
    rules.take_gradient(held, 1024)
    rules.leave(held, "last backward", 0)
    assert (held.held["gradients"], held.host["gradients"]) == (device, host)


def test_modes_without_a_recording_name_the_setting(tiny):
    with pytest.raises(NotRecorded, match="chunks=2"):
        find_recording("tiny", {**MODE, "chunks": 2})
    with pytest.raises(NotRecorded, match="nowhere"):
        find_recording("nowhere", MODE)


def build_llama(tmp_path, **values):
    content = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99}
    content |= {"model_type": "llama", "intermediate_size": 128} | values
    (tmp_path / "config.json").write_text(json.dumps(content))
    return Config(
        run="r",
        task="text",
        strategy="ddp",
        model_path=str(tmp_path),
        micro_batch_size=1,
        global_batch_size=2,
    )


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"model_type": "starcoder2", "sliding_window": 64}, "model_type=starcoder2"),
        ({"model_type": "../recordings/llama"}, "model_type=../recordings/llama"),
        ({"attention_bias": True}, "q_proj"),
        ({"mlp_bias": True}, "gate_proj"),
    ],
)
def test_layers_without_a_recording_are_not_taken_for_others(values, code, tmp_path):
    assert predict_step(build_llama(tmp_path), 2, 2).peak[0] > 0
    with pytest.raises(NotRecorded, match=code):
        predict_step(build_llama(tmp_path, **values), 2, 2)
    assert step_prediction._read_family("../recordings/llama") == []


def test_files_keep_recordings(tiny, tmp_path):
    write_recordings(tmp_path / "tiny.json.gz", tiny, {"torch": "2.13"})
    again = read_recordings(tmp_path / "tiny.json.gz")
    assert [one.segments for one in again] == [one.segments for one in tiny]
    kept = [{place: [tuple(row) for row in rows] for place, rows in one.weights.items()} for one in again]
    assert kept == [one.weights for one in tiny]


IN_SIZES = {
    *("task", "model", "model_path", "model_layers", "model_hidden", "model_heads", "model_kv_heads"),
    *("model_intermediate", "model_patch", "model_vocab", "lora_rank", "image_size", "seq_len"),
    *("loss_chunk_tokens", "global_batch_size", "micro_batch_size", "optimizer", "momentum"),
}
"""Sizes of the model, the batch or the optimizer's state."""
IN_MODE = {"augment", "packing", "precision", "activation_checkpointing", "strategy"}
IN_RULES = {
    *("zeropp", "dp_replicate", "dp_shard", "layout", "dimensions", "cp", "tp", "pp", "ep", "pp_schedule"),
    *("cp_method", "sequence_parallel", "reduce_bucket_mib", "gather_bucket_mib", "overlap_reduction"),
    *("persistent_elements", "offload", "weight_decay"),
}
"""Of layouts and of single strategies: their rules decide."""
WITHOUT_EFFECT = {"text_columns", "chat_roles", "long_documents", "clip_norm", "label_smoothing"}
"""Rows have the same length for every text; gradients are scaled in place."""


def test_each_setting_is_decided():
    """A new setting is irrelevant, a size, a part of the mode or of rules, or has only some recorded values."""
    decided = {*IRRELEVANT, *PLAIN, *IN_SIZES, *IN_MODE, *IN_RULES, *WITHOUT_EFFECT}
    assert set(Settings.model_fields) - decided == set()
    assert decided - set(Settings.model_fields) == set()


REFUSED = [
    *("compile=true", "reduce_dtype=bf16", "accumulate=whole", "prefetch_blocks=2"),
    "strategy=zero3 precision=fp32 packing=false",
]


@pytest.mark.parametrize(
    ("setting", "ranks"), [*((each, 2) for each in REFUSED), ("strategy=zero3 offload=all", 1)]
)
def test_settings_without_rules_are_refused(setting, ranks):
    given = dict(part.split("=") for part in setting.split())
    env = {
        "RUN": "r",
        "MODEL": "llama-3.2-1b",
        "DATASET": "metamathqa",
        "STRATEGY": "fsdp",
        **{name.upper(): value for name, value in given.items()},
    }
    config = Config.from_env({f"TRAINER_{key}": str(each) for key, each in env.items()})
    with pytest.raises(NotRecorded, match=list(given)[-1]):
        predict_step(config, ranks, ranks)


def ask(**settings: str) -> Question:
    given = {"dataset": "timm/imagenet-1k" if "vit" in settings["model"] else "metamathqa", **settings}
    batch = int(given.get("global_batch_size", 0))
    return Question("x", given, 4, 0, int(given.get("micro_batch_size", 1)), batch, whole=False)


def test_no_cause_is_negative():
    """Masks of a recomputed layer are freed before others exist."""
    chosen = {
        "activation_checkpointing": "selective",
        "model_layers": "3",
        "precision": "fp32",
        "seq_len": "1000",
    }
    asked = ask(model="gemma-2-2b", strategy="ddp", **chosen)
    assert min(simulate_run(asked).peak(1, 4).causes.values()) > 0


@pytest.mark.parametrize("batch", [{}, {"global_batch_size": "32"}, {"global_batch_size": "96"}])
def test_another_micro_batch_is_answered_as_if_asked_for(batch):
    """Also if a step has a single micro-batch."""
    asked = ask(model="vit_tiny", strategy="ddp", micro_batch_size="8", **batch)
    again = ask(model="vit_tiny", strategy="ddp", micro_batch_size="4", **batch)
    assert simulate_run(asked).peak(4, 4) == simulate_run(again).peak(4, 4)

"""What is foreseen against what is counted whole: state, peaks at another depth, batch and number of ranks, offloading.

State: recorded steps, at a depth that was not recorded, in the fullest moment of the update.

State that is foreseen for 2, 4 and 8 ranks against the tensors that so many real processes hold: to the byte.

Foreseen is a count on the fake process group, by a CPU's rules; held is what each rank's engine has in the update of
its second step over gloo, storage by storage (trainer/measuring/held_tensors.py). That walk leaves out what the count
has besides: AdamW's step counters, four bytes for each parameter or flat group; the table of rotary positions. In
stage 3 it sees the parameters too that are gathered at that moment, which a count keeps apart. An FSDP shard that is
padded with nothing of its own holds the padding under another cause.
"""

import json
import os
import shlex
from pathlib import Path

import pytest

from tests.ranks import run_ranks
from tests.trainer.counting.real_steps import make_config

LAYERS, ROWS = 7, 2
STATE = ("parameters", "master copies", "gradients", "gradient buckets", "optimizer state")
SIMULATED = {
    "single": (1,),
    **dict.fromkeys(("ddp", "fsdp", "zero1", "zero2", "zero3"), (2, 4, 8)),
    **dict.fromkeys(("hsdp", "zeropp"), (8,)),
}
"""Strategy -> ranks."""


@pytest.mark.parametrize("strategy", SIMULATED)
def test_simulated_state_is_counted_state(strategy: str, tmp_path: Path) -> None:
    """Between the steps and in the update, of ViT-Huge at a depth that was not recorded."""

    def run() -> None:
        from stratlab_spec.memory.step_prediction import predict_step
        from stratlab_spec.models.pictures import find_pictures
        from stratlab_spec.settings.config import Config
        from trainer.memory_estimation.steps import count

        given = {
            "model": "vit_huge",
            "dataset": "timm/imagenet-1k",
            "model_layers": LAYERS,
            "strategy": strategy,
        }
        found = []
        for ranks in SIMULATED[strategy]:
            batch = {"micro_batch_size": ROWS, "global_batch_size": 2 * ROWS * ranks}
            config = Config(run="x", precision="bf16", **given | batch)
            per_node = ranks // 2 if strategy in ("hsdp", "zeropp") else ranks
            foreseen = predict_step(config, ranks, per_node).windows["optimizer"][1]
            held = (
                count(config, ranks, 0, find_pictures(config), per_node=per_node)
                .windows["optimizer"]
                .by_cause()
            )
            found.append((ranks, {cause: (foreseen[cause], held.get(cause, 0)) for cause in STATE}))
        (tmp_path / "found.json").write_text(json.dumps(found))

    run_ranks(run, 1)
    for ranks, causes in json.loads((tmp_path / "found.json").read_text()):
        assert sum(held for _, held in causes.values()) > 0
        off = sum(abs(foreseen - held) for foreseen, held in causes.values())
        assert off <= 0.002 * sum(held for _, held in causes.values()), (ranks, causes)


BAR = 0.03
TEXT = "model=qwen_tiny dataset=arithmetic precision=bf16 seq_len=64 loss_chunk_tokens=128 model_layers=14"
EXPERTS = TEXT.replace("qwen_tiny", "qwen_moe_tiny")
PICTURES = "model=vit_tiny dataset=synthetic image_size=32 model_layers=14"
CONVOLUTIONS = "model=cnn dataset=synthetic image_size=32"
PER_NODE = {"vit zeropp": 4}
CASES = {
    "decoder fsdp": f"{TEXT} strategy=fsdp",
    "vit hsdp": f"{PICTURES} strategy=hsdp dp_replicate=2 dp_shard=4",
    "decoder nd": f"{TEXT} strategy=nd layout=given dp_replicate=4 tp=2",
    "decoder zero3 checkpointing": f"{TEXT} strategy=zero3 persistent_elements=1000 activation_checkpointing=blocks",
    "vit zeropp": f"{PICTURES} strategy=zeropp persistent_elements=1000",
    "decoder zero2 adapters not packed": f"{TEXT} strategy=zero2 lora_rank=4 packing=false",
    "experts nd": f"{EXPERTS} strategy=nd layout=given dp_shard=8 ep=4",
    "decoder nd pipeline": f"{TEXT} strategy=nd layout=given dp_shard=4 pp=2",
    "cnn zero3 one micro-batch": f"{CONVOLUTIONS} strategy=zero3 persistent_elements=1000",
}
SAME_RANKS = ("vit hsdp", "vit zeropp", "decoder nd", "decoder nd pipeline", "experts nd")
"""Their files answer for the number of ranks that was counted."""


def environment(text: str, rows: int, global_batch: int) -> dict[str, str]:
    named = dict(setting.split("=", 1) for setting in f"run=x {text}".split())
    named |= {"micro_batch_size": str(rows), "global_batch_size": str(global_batch)}
    return {f"TRAINER_{name.upper()}": value for name, value in named.items()}


@pytest.mark.parametrize("case", CASES)
def test_scaled_is_what_is_counted_whole(case, tmp_path):
    """Micro-batches of two rows on 8 ranks are asked for; whole are 6 rows on 4, or on 8, and 14 layers."""
    text, rows = CASES[case], 6
    ranks = 8 if case in SAME_RANKS else 4
    per_node, layers = PER_NODE.get(case, 8), 0 if "cnn" in case else 14
    global_batch = 16 if "one micro-batch" in case else 32

    def run() -> None:
        from stratlab_spec.memory.profiles import read_operations_file
        from stratlab_spec.models.pictures import find_pictures
        from trainer.memory_estimation.memory_profile import build_operations
        from trainer.memory_estimation.steps import count

        content = build_operations(environment(text, 2, global_batch), 8, per_node, say=lambda text: None)
        axes, micro_batches = (content["samples"][0][name] for name in ("axes", "micro_batches"))
        dp = ranks // (axes["tp"] * axes["pp"])  # ranks that see other rows
        path = tmp_path / "operations.json"
        path.write_text(json.dumps(content))
        scaled = read_operations_file(path).peak(rows, ranks, layers)
        config = make_config(f"{text} micro_batch_size={rows} global_batch_size={micro_batches * rows * dp}")
        whole = count(config, ranks, scaled.rank, find_pictures(config), per_node=min(per_node, ranks)).peak
        off = scaled.total / whole.total - 1
        assert abs(off) <= BAR, (f"{100 * off:+.2f} %", scaled.window, scaled.causes, whole.by_cause())

    run_ranks(run, 1)


@pytest.mark.parametrize(("model", "ranks", "strategy"), [("cnn", 8, "fsdp"), ("qwen_tiny", 16, "zeropp")])
def test_the_printed_command_counts_what_was_asked(model, ranks, strategy, tmp_path):
    """`stratlab predict` names it where no file answers: as it stands, and its file answers the same question."""

    def run() -> None:
        from stratlab.predict.asking import ask_of_model
        from stratlab.predict.counting import name_count
        from stratlab_spec.memory.profiles import find_operations, read_operations
        from trainer.memory_estimation.command import main

        (question,) = ask_of_model(model, ranks, [f"strategy={strategy}"], 8)
        words = shlex.split(name_count(question).replace("FOLDER", str(tmp_path)))
        assert words[:3] == ["python", "-m", "trainer.count"]
        assert main(words[3:], {}) == 0
        files = list(read_operations([tmp_path]))
        assert find_operations(files, question) is files[0], [*files[0].misses(question)]

    run_ranks(run, 1)


PLACES = [*(("fsdp", "all"), ("zero2", "optimizer"), ("zero3", "all"), ("hsdp", "all"))]
LEAVE = {
    "optimizer": ("master copies", "optimizer state"),
    "all": ("parameters", "master copies", "optimizer state"),
}
SMALL = 0.01
"""Share of the parameters that may stay on the device: those below `persistent_elements`, buffers."""


@pytest.mark.parametrize(("strategy", "offload"), PLACES)
def test_state_leaves_the_device(strategy: str, offload: str, tmp_path: Path) -> None:
    def run() -> None:
        from stratlab_spec.models.pictures import find_pictures
        from stratlab_spec.settings.config import Config
        from trainer.memory_estimation.steps import count

        given = {"model": "vit_base", "dataset": "synthetic", "model_layers": 2, "precision": "bf16"}
        batch = {"micro_batch_size": 4, "global_batch_size": 32}
        found = {}
        for place in ("none", offload):
            config = Config(run="x", strategy=strategy, offload=place, **given, **batch)
            counted = count(config, 4, 0, find_pictures(config, 10, 3), per_node=2)
            found[place] = {
                "device": counted.windows["optimizer"].by_cause(),
                "between": counted.between.by_cause(),
                "peak": counted.peak.by_cause(),
                "host": counted.host.by_cause(),
                "total": (counted.peak.total, counted.host.total),
            }
        (tmp_path / "found.json").write_text(json.dumps(found))

    run_ranks(run, 1)
    found = json.loads((tmp_path / "found.json").read_text())
    without, moved = found["none"], found[offload]
    assert without["total"][1] == 0, "nothing is on the host where nothing is offloaded"
    for cause in LEAVE[offload]:
        held = without["between"][cause]
        assert moved["host"][cause] >= (1 - SMALL) * held, cause
        assert moved["between"][cause] <= SMALL * held, cause
    for cause in ("activations", "data", "logits and loss"):
        assert moved["peak"][cause] == without["peak"][cause], cause
    assert moved["total"][0] < without["total"][0]


VIT = "model=vit_tiny dataset=digits image_size=32 micro_batch_size=2"
QWEN = "model=qwen_tiny dataset=arithmetic seq_len=32 micro_batch_size=2"
RUNS = [
    (VIT, "ddp", 2), (VIT, "fsdp", 4), (VIT, "hsdp dp_replicate=2 dp_shard=4", 8), (VIT, "zero1", 2),
    (VIT, "zero2", 4), (VIT, "zero3", 8), (VIT, "zeropp", 4), (QWEN, "nd layout=given tp=2 pp=2 dp_shard=2", 8),
]  # fmt: skip
VIT_BYTES = 559_912
"""Its parameters in fp32: gathered whole, in the update, where they are small."""
STEP_BYTES, ROTARY_BYTES = 4, 64
TENSORS = {"zero": 1, "nd": 50, "": 72}
"""Parameters, or flat groups of them, of the largest stage."""


@pytest.mark.parametrize(("model", "strategy", "ranks"), RUNS)
def test_real_processes_hold_what_is_foreseen(model: str, strategy: str, ranks: int, tmp_path: Path) -> None:
    text = f"{model} precision=bf16 global_batch_size={4 * ranks} strategy={strategy}"

    def hold() -> None:
        import torch.distributed as dist

        from tests.trainer.counting.real_steps import make_config, run_steps

        os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]
        dist.init_process_group("gloo")
        engine = run_steps(make_config(text))
        (tmp_path / f"held-{dist.get_rank()}.json").write_text(json.dumps(engine.observed.bytes_held))
        dist.destroy_process_group()

    def foresee() -> None:
        from stratlab_spec.models.pictures import find_pictures
        from tests.trainer.counting.real_steps import make_config
        from trainer.memory_estimation.steps import count

        config = make_config(text)
        for rank in (0, ranks - 1):
            counted = count(config, ranks, rank, find_pictures(config), cuda=False, block_bytes=1)
            causes = counted.windows["optimizer"].by_cause()
            (tmp_path / f"foreseen-{rank}.json").write_text(json.dumps(causes))

    run_ranks(hold, ranks)
    run_ranks(foresee, 1)
    for rank in (0, ranks - 1):
        names = (f"{kind}-{rank}.json" for kind in ("held", "foreseen"))
        assert_equal(strategy.split()[0], *(json.loads((tmp_path / name).read_text()) for name in names))


def assert_equal(strategy: str, held: dict[str, int], foreseen: dict[str, int]) -> None:
    """Every part of a rank, but for what the file's first lines name."""
    zero, whole = strategy.startswith("zero"), strategy in ("zero3", "zeropp")
    parameters = foreseen["parameters"] + foreseen["master copies"]
    gradients = foreseen["gradients"] + (0 if whole else foreseen["gradient buckets"])
    parameters += VIT_BYTES if whole else 0
    parameters -= ROTARY_BYTES if strategy == "nd" else 0
    padding = held["parameters"] - parameters
    assert padding == 0 or (strategy in ("fsdp", "hsdp") and 0 < padding <= 1024), (held, foreseen)
    assert held["gradients"] == gradients, (held, foreseen)
    assert held.get("buckets", 0) == (foreseen["gradient buckets"] if whole else 0), (held, foreseen)
    counters = foreseen["optimizer state"] - held["optimizer"]
    tensors = TENSORS["zero" if zero else "nd" if strategy == "nd" else ""]
    assert counters % STEP_BYTES == 0 and 0 < counters <= STEP_BYTES * (tensors + 2), (held, foreseen)

"""Write the recorded steps of every family: python -m trainer.memory_estimation.record_families [FAMILY ...]

A family is recorded with small random sizes, once per FLAVOR, mode and number of the loss's chunks. The result is
stratlab_spec/memory/recordings/<family>.json.gz. A few minutes per family, without a GPU and without data.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from stratlab_spec.memory.recording import BACKWARD, FOLDER, LAYERS, Recording, write_recordings
from stratlab_spec.memory.sizes import MOST_CHUNKS, decoder_sizes, describe_tokens, image_sizes
from stratlab_spec.memory.step_prediction import FLAVORS, SAME_LAYERS
from stratlab_spec.models.decoder import FAMILIES
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.models.model_specs import read_vit_shape
from stratlab_spec.models.pictures import Pictures, find_pictures
from stratlab_spec.settings.config import Config
from trainer.memory_estimation.rules import read_countable
from trainer.memory_estimation.timeline import LIBRARIES

DRAWS = 4
OUTSIDE = ("head", f"head{BACKWARD}", f"start{BACKWARD}")
"""Segments that depend on the loss's chunks and on a tied head."""
TIED = {"llama": (False, True), "qwen2": (False, True), "qwen3": (False, True)}
"""Family -> whether the head shares the embedding's weight, if both occur; else as transformers has it by default."""

EXPERTS_PER_TOKEN = {"mixtral": 2, "qwen3_moe": 8, "gpt_oss": 4}
"""Family -> those of its published models: a router's events depend on their number."""
NATIVE = "bf16_native"
PRECISIONS: tuple[tuple[str, dict[str, bool]], ...] = (
    ("bf16", {}),
    ("fp16", {}),
    ("fp32", {}),
    ("fp32", {"gathered": True}),
    (NATIVE, {}),
    (NATIVE, {"gathered": True}),
)
"""With or without the linear layers that stage 3 has where nothing casts. The layers of fp16 allocate as those of bf16,
which is recorded first. Only DeepSpeed's strategies have NATIVE: one process with 16-bit weights stands for them."""
RECOMPUTED = ("none", "blocks", "selective")


def draw_decoder(family: str, tied: bool, windowed: bool, draw: random.Random) -> dict[str, Any]:
    """Return the content of a config.json with random sizes."""
    row = FAMILIES[family]
    kv_heads = draw.choice([2, 3, 5])
    heads = kv_heads * draw.choice([2, 3, 5, 7])
    head_dim = 8 * draw.choice([3, 5, 7, 9, 11, 13])
    hidden = heads * 8 * draw.choice([2, 4, 6, 10])
    whole = family in ("gpt2", "olmo2", "phi3")  # their heads make up the hidden size
    content = {
        "model_type": family,
        "num_hidden_layers": len(LAYERS),
        "hidden_size": heads * head_dim if whole else hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": 8 * draw.randint(40, 160),
        "vocab_size": draw.randint(1000, 1400),
        "max_position_embeddings": 8 * draw.randint(300, 500),
        "tie_word_embeddings": tied,
        "sliding_window": draw.choice([17, 23, 29, 41]) if windowed else None,
    }
    if not whole:
        content["head_dim"] = head_dim
    if row.experts:
        experts = draw.choice([11, 13, 17, 19])
        content |= {"num_experts": experts, "num_local_experts": experts}
        content |= {"num_experts_per_tok": EXPERTS_PER_TOKEN[family]}
        content |= {row.expert_width: 8 * draw.randint(20, 60)}
    if family == "phi3":
        content["pad_token_id"] = 0
    return content


def list_tied(family: str) -> tuple[bool, ...]:
    """Return whether the head shares the embedding's weight, in each way that occurs."""
    return TIED.get(family, (bool(FAMILIES[family].unsaid.get("tie_word_embeddings", False)),))


def draw_batch(chunks: int, draw: random.Random) -> tuple[dict[str, int], int]:
    """Return the settings of a micro-batch whose loss has this many chunks, each of two pieces, and the rows of one."""
    rows, length = draw.choice([3, 5, 7, 11]), 8 * draw.randint(12, 30)
    tokens = rows * length
    chunk, piece = {
        1: (tokens + draw.randint(10, 500), int(tokens * draw.uniform(0.55, 0.9))),
        2: (int(tokens * draw.uniform(0.53, 0.57)), int(tokens * draw.uniform(0.30, 0.40))),
        3: (int(tokens * draw.uniform(0.37, 0.385)), int(tokens * draw.uniform(0.205, 0.215))),
    }[chunks]
    return {"micro_batch_size": rows, "seq_len": length, "loss_chunk_tokens": chunk}, piece


def record_family(family: str, folder: Path) -> Iterator[Recording]:
    """Yield the recordings of a family's modes.

    Ends and layers are recorded apart: the loss's chunks and a tied head change the ends alone, recomputed blocks and
    packed rows the layers and the start.
    """
    row, tied = FAMILIES[family], list_tied(family)
    chosen = {"experts_per_token": EXPERTS_PER_TOKEN[family]} if row.experts else {}
    plain = {"activation_checkpointing": "none", "packing": True, "windowed": False}
    inside: dict[tuple[Any, ...], Recording] = {}
    for flavor, (precision, gathered), lora in product(FLAVORS, PRECISIONS, (False, True)):
        others = precision != "bf16"
        if others and (lora or (row.experts and precision != NATIVE)):  # products of experts have 16 bits
            continue
        if (precision == NATIVE or gathered) and flavor != "whole":
            continue
        common = {"flavor": flavor, "precision": precision, "lora": lora, **gathered, **chosen}
        modes = RECOMPUTED[:2] if lora else RECOMPUTED  # the others are counted where one is asked for
        # recomputed layers change the ends too, where the stream arrives in the type of the ends
        apart = lora or precision == NATIVE
        ends = {
            (recomputed, shared, chunks): record_decoder(
                family,
                {
                    **common,
                    **plain,
                    "activation_checkpointing": recomputed,
                    "tied": shared,
                    "chunks": chunks,
                },
                folder,
            )
            for recomputed, shared, chunks in product(
                modes if apart else modes[:1], tied, range(1, MOST_CHUNKS + 1)
            )
        }
        windows = (False, True) if row.scores_kept and not others else (False,)
        packings = (True,) if others else (True, False)
        for recomputed, packing, windowed in product(modes, packings, windows):
            if windowed and not packing:
                continue
            layers = {"activation_checkpointing": recomputed, "packing": packing, "windowed": windowed}
            key = flavor, lora, *layers.values()
            known = ends.get((recomputed, tied[0], 1)) if packing and not windowed else None
            if precision != "fp16":
                mode = {**common, **layers, "tied": tied[0], "chunks": 1}
                inside[key] = known or record_decoder(family, mode, folder)
            of_mode = recomputed if apart else modes[0]
            for shared, chunks in product(tied, range(1, MOST_CHUNKS + 1)):
                settings = {"repeats": True, **common, **layers, "tied": shared, "chunks": chunks}
                yield join_recordings(settings, inside[key], ends[of_mode, shared, chunks])


def join_recordings(settings: Mapping[str, Any], inside: Recording, outside: Recording) -> Recording:
    """Return a recording with the layers and the start of one, and the other ends of another."""
    segments = {name: (outside if name in OUTSIDE else inside).segments[name] for name in inside.segments}
    return Recording(settings, outside.weights, segments, inside.data)


def record_decoder(family: str, mode: Mapping[str, Any], folder: Path) -> Recording:
    """Record one mode of a family of language models."""
    from trainer.memory_estimation.step_recording import build_recording, record_step
    from trainer.memory_estimation.storages import replaced
    from trainer.models import chunked_cross_entropy

    flavor = FLAVORS[mode["flavor"]]
    draw, draws, alone = random.Random(1), [], list(describe_tokens(1, 1)[0])
    for _ in range(DRAWS):
        content = draw_decoder(family, mode["tied"], mode["windowed"], draw)
        batch, piece = draw_batch(mode["chunks"], draw)
        (folder / "config.json").write_text(json.dumps(content))
        settings = {
            "run": "record",
            "task": "text",
            "dataset": "metamathqa",
            "model_path": folder,
            "strategy": flavor.strategy,
            "packing": str(mode["packing"]).lower(),
            "activation_checkpointing": mode["activation_checkpointing"],
            "global_batch_size": 2 * flavor.ranks * batch["micro_batch_size"],
            **({"lora_rank": 4 * draw.choice([1, 3, 5, 7]), "init": "scratch"} if mode["lora"] else {}),
            **batch,
        }
        config = _read_settings(settings, mode["precision"], flavor.ranks)
        with replaced(chunked_cross_entropy, ROWS_AT_ONCE=piece):
            sizes, _ = decoder_sizes(config, read_shape(config), piece)
            gathered = mode.get("gathered", False)
            draws.append(record_step(config, flavor.ranks, sizes, find_pictures(config), gathered=gathered))
    return build_recording({"repeats": True, **mode}, draws, alone)


def _read_settings(settings: Mapping[str, Any], precision: str, ranks: int) -> Config:
    """Return the settings; strategies in one process have no NATIVE, so their rules do not see it."""
    asked = {**settings, "precision": "bf16" if precision == NATIVE else precision}
    env = {f"TRAINER_{name.upper()}": str(value) for name, value in asked.items()}
    return read_countable(env, ranks, 0, ranks).model_copy(update={"precision": precision})


IMAGES = ("vit", "resnet", "efficientnet", "mobilenet", "vgg")
"""Vision transformers, and networks of fixed layers."""


def record_images(family: str) -> Iterator[Recording]:
    """Yield the recordings of a family of image models."""
    modes = product(FLAVORS, PRECISIONS, ("none", "blocks"), (False, True), (False, True))
    for flavor, (precision, gathered), recomputed, lora, mixed in modes:
        known = RECOMPUTED[:2] if family == "vit" else ("none",)
        if recomputed not in known or (family != "vit" and (lora or precision not in ("bf16", NATIVE))):
            continue
        if precision != "bf16" and lora:
            continue
        if (precision == NATIVE or gathered) and flavor != "whole":
            continue
        if gathered and family != "vit":  # counts of other networks fail there
            continue
        yield record_image_model(
            family,
            {
                "flavor": flavor,
                "precision": precision,
                "activation_checkpointing": recomputed,
                "lora": lora,
                "mixed": mixed,
                **gathered,
            },
        )


def record_image_model(family: str, mode: Mapping[str, Any]) -> Recording:
    """Record one mode of a family of image models."""
    from trainer.memory_estimation.step_recording import build_recording, record_step

    flavor, draw, draws = FLAVORS[mode["flavor"]], random.Random(1), []
    for _ in range(DRAWS):
        settings: dict[str, Any] = {
            "run": "record",
            "dataset": "timm/imagenet-1k",
            "strategy": flavor.strategy,
            "activation_checkpointing": mode["activation_checkpointing"],
            "micro_batch_size": draw.choice([3, 5, 7, 9, 11, 13]),
            "augment": "mixup" if mode["mixed"] else "none",
        }
        if family == "vit":
            heads, patch = draw.choice([2, 3, 5, 6, 7]), draw.choice([4, 6, 8, 10, 14])
            settings |= {
                "model": "vit_tiny",
                "model_layers": len(LAYERS),
                "model_hidden": heads * 8 * draw.choice([2, 3, 5, 7]),
                "model_heads": heads,
                "model_intermediate": 8 * draw.randint(20, 60),
                "model_patch": patch,
                "image_size": patch * draw.choice([5, 7, 9, 11, 13]),
            }
        else:
            settings["model"] = family
        if mode["lora"]:
            settings |= {"lora_rank": 4 * draw.choice([1, 3, 5, 7]), "init": "scratch"}
        settings["global_batch_size"] = 2 * flavor.ranks * settings["micro_batch_size"]
        config = _read_settings(settings, mode["precision"], flavor.ranks)
        pictures = Pictures(draw.randint(90, 1100), 3)
        sizes = image_sizes(config, read_vit_shape(config), pictures)
        gathered = mode.get("gathered", False)
        draws.append(record_step(config, flavor.ranks, sizes, pictures, gathered=gathered))
    return build_recording({"repeats": family == "vit", **mode}, draws, ())


def write_each(families: Sequence[str], write: Callable[[str, Path], str]) -> int:
    """Let `write` record each family; return 0, or 1 if one cannot be recorded.

    Args:
        write: gets a family and an empty folder, writes the family's file, and returns its description.
    """
    os.environ["DS_ACCELERATOR"] = "cpu"
    warnings.filterwarnings("ignore")
    import trainer.memory_estimation.step_recording  # noqa: F401

    gc.freeze()  # each count collects its garbage, and the libraries' objects are none
    failed = 0
    for family in families:
        began = time.perf_counter()
        try:
            with tempfile.TemporaryDirectory() as folder:
                found = write(family, Path(folder))
        except (ValueError, RuntimeError) as failure:
            print(f"{family}: {failure!r}"[:2000], file=sys.stderr, flush=True)
            failed = 1
            continue
        print(f"{family}: {found} in {time.perf_counter() - began:.0f} s", flush=True)
    return failed


def write_file(name: str, found: Sequence[Recording]) -> str:
    """Write a family's recordings; return their description."""
    path = FOLDER / f"{name}.json.gz"
    write_recordings(path, found, {library: version(library) for library in LIBRARIES})
    return f"{len(found)} recordings, {path.stat().st_size / 1000:.1f} kB"


def main(families: Sequence[str]) -> int:
    """Write the files of these families, or of all; return 0, or 1 if one cannot be recorded."""

    def write(family: str, folder: Path) -> str:
        found = record_images(family) if family in IMAGES else record_family(family, folder)
        return write_file(family, list(found))

    every = *(name for name in FAMILIES if name not in SAME_LAYERS), *IMAGES
    return write_each(families or every, write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

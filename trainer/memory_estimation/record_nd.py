"""Write the recorded steps of strategy nd: python -m trainer.memory_estimation.record_nd [FAMILY ...]

Every draw has other degrees of tensor and context parallelism, so that a rank's share of the heads, words or tokens is
a symbol of its own (stratlab_spec/memory/nd_rules.py). The result is recordings/<family>-nd.json.gz.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from stratlab_spec.memory.nd_rules import LayerSplit, nd_sizes
from stratlab_spec.memory.recording import Recording
from stratlab_spec.memory.sizes import MOST_CHUNKS, describe_tokens
from stratlab_spec.memory.step_prediction import SAME_LAYERS
from stratlab_spec.models.decoder import FAMILIES
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.models.pictures import find_pictures
from trainer.memory_estimation.record_families import (
    DRAWS,
    RECOMPUTED,
    draw_batch,
    draw_decoder,
    join_recordings,
    list_tied,
    write_each,
    write_file,
)
from trainer.memory_estimation.rules import read_countable

DEGREES = (2, 4, 3, 5), (3, 2, 5, 4)
"""Of tp and cp, by draw."""
SHARDS = 2


def record_family(family: str, folder: Path) -> Iterator[Recording]:
    """Yield the recordings of a family, the ends apart from the layers as record_families.py."""
    row, tied = FAMILIES[family], list_tied(family)
    ways = ((False, False), (True, False), (True, True)) if "tp" in row.dims else ((False, False),)
    methods = ("none", "ulysses", "allgather") if "cp" in row.dims else ("none",)
    windows = (False, True) if row.scores_kept else (False,)
    for tp, sequence in ways:
        common = {"flavor": "nd", "precision": "bf16", "lora": False}
        common |= {"tp": tp, "sequence_parallel": sequence}
        plain = {"activation_checkpointing": "none", "packing": True, "windowed": False, "cp": "none"}
        ends = {
            (shared, chunks): record_decoder(
                family, {**common, **plain, "tied": shared, "chunks": chunks}, folder
            )
            for shared, chunks in product(tied, range(1, MOST_CHUNKS + 1))
        }
        for cp, recomputed, packing, windowed in product(methods, RECOMPUTED, (True, False), windows):
            if not tp and cp == "none":  # the recordings of fsdp
                continue
            layers = {
                "activation_checkpointing": recomputed,
                "packing": packing,
                "windowed": windowed,
                "cp": cp,
            }
            inside = record_decoder(family, {**common, **layers, "tied": tied[0], "chunks": 1}, folder)
            for (shared, chunks), outside in ends.items():
                settings = {"repeats": True, **common, **layers, "tied": shared, "chunks": chunks}
                yield join_recordings(settings, inside, outside)


def record_decoder(family: str, mode: Mapping[str, Any], folder: Path) -> Recording:
    """Record one mode of a family of language models, on the last rank of the sequence."""
    from trainer.memory_estimation.step_recording import build_recording, record_step
    from trainer.memory_estimation.storages import replaced
    from trainer.models import chunked_cross_entropy

    draw, draws, alone = random.Random(1), [], list(describe_tokens(1, 1)[0])
    for number in range(DRAWS):
        tp = DEGREES[0][number] if mode["tp"] else 1
        cp = 1 if mode["cp"] == "none" else DEGREES[1][number]
        content = draw_decoder(family, mode["tied"], mode["windowed"], draw)
        for name in ("num_attention_heads", "num_key_value_heads", "hidden_size", "max_position_embeddings"):
            content[name] *= tp * cp
        for name in ("intermediate_size", "vocab_size"):
            content[name] *= tp
        batch, piece = draw_batch(mode["chunks"], draw)
        batch["loss_chunk_tokens"] *= tp
        batch["seq_len"] *= tp * cp
        (folder / "config.json").write_text(json.dumps(content))
        settings = {
            "run": "record",
            "task": "text",
            "dataset": "metamathqa",
            "model_path": folder,
            "strategy": "nd",
            "layout": "given",
            "tp": tp,
            "cp": cp,
            "dp_shard": SHARDS,
            "sequence_parallel": "on" if mode["sequence_parallel"] else "off",
            "precision": mode["precision"],
            "packing": str(mode["packing"]).lower(),
            "activation_checkpointing": mode["activation_checkpointing"],
            "global_batch_size": 2 * SHARDS * batch["micro_batch_size"],
            **({"cp_method": mode["cp"]} if cp > 1 else {}),
            **batch,
        }
        env = {f"TRAINER_{name.upper()}": str(value) for name, value in settings.items()}
        ranks, rank = SHARDS * tp * cp, (cp - 1) * tp
        config = read_countable(env, ranks, rank, ranks)
        with replaced(chunked_cross_entropy, ROWS_AT_ONCE=piece * tp):
            split = LayerSplit(tp, mode["sequence_parallel"], cp, mode["cp"])
            sizes, _ = nd_sizes(config, read_shape(config), split, piece * tp)
            draws.append(record_step(config, ranks, sizes, find_pictures(config), rank))
    return build_recording({"repeats": True, **mode}, draws, alone)


def main(families: Sequence[str]) -> int:
    """Write the files of these families, or of all; return 0, or 1 if one cannot be recorded."""
    # experts have a group of their own, over other ranks
    known = (name for name in FAMILIES if name not in SAME_LAYERS and not FAMILIES[name].experts)
    return write_each(
        families or list(known),
        lambda family, folder: write_file(f"{family}-nd", list(record_family(family, folder))),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

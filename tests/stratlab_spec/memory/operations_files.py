"""Operations files with round numbers or with one thing wrong, and questions to them."""

import json

from stratlab_spec.memory.profiles import Question, read_operations_file

CHUNK = 2
SETTINGS = {
    "model": "qwen2.5-3b",
    "strategy": "fsdp",
    "seq_len": 2048,
    "packing": True,
    "precision": "bf16",
    "activation_checkpointing": "none",
    "loss_chunk_tokens": 2048,
    "lora_rank": 0,
}
DEFAULTS = {**SETTINGS, "model": "vit_tiny", "strategy": "single", "seq_len": 512}


def hold(layers, rows, ranks):
    """Two windows, the second one the fuller of few rows; logits stop growing at CHUNK rows."""
    state = {"parameters": (100 + 10 * layers) * 840 // ranks, "gathered": 500}
    loss = 1000 * min(rows, CHUNK)
    return {
        "forward": {**state, "activations": 7 * layers * rows, "logits and loss": loss},
        "backward, end": {**state, "gradients": 9000},
    }


COUNTED = [
    *((layers, rows, 8) for layers in (4, 8) for rows in (1, 2, 4)),
    *((layers, 4, 2) for layers in (4, 8)),
]
SAMPLES = [
    {"layers": at[0], "rows": at[1], "ranks": at[2], "rank": 0, "axes": {}, "windows": hold(*at)}
    for at in COUNTED
]


def build_content(settings=None, **others):
    """Of fsdp on 8 ranks, unless `settings` say otherwise; they are in both tables, as a count writes them."""
    given = settings or {}
    of_all = {name: SETTINGS.get(name, value) for name, value in given.items()}
    return {
        "schema_version": 1,
        "key": "0123",
        "settings": SETTINGS | given,
        "defaults": DEFAULTS | of_all,
        "layers": 36,
        **dict.fromkeys(("scales_depth", "scales_ranks", "accumulates"), True),
        **dict.fromkeys(("labels", "channels"), 0),
        "versions": {},
        "samples": SAMPLES,
        **others,
    }


def write_file(folder, settings=None, **others):
    content = build_content(settings, **others)
    folder.mkdir(exist_ok=True)
    path = folder / f"{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps(content))
    return path


def make_file(folder, settings=None, **others):
    return read_operations_file(write_file(folder, settings, **others))


def ask(settings, ranks=8, global_batch=0, whole=True):
    """Micro-batches of one row; a step of `global_batch`, where 0 is several."""
    return Question("x", settings, ranks, ranks, rows=1, global_batch=global_batch, whole=whole)


DAMAGES = {
    "no samples": {"samples": []},
    "no settings": {"settings": {}, "samples": []},
    "settings a list": {"settings": []},
    "no strategy": {"settings": {"model": "vit_huge"}},
    "layers a text": {"layers": "many"},
}
SAMPLE_DAMAGES = {
    "windows a text": {"windows": "many"},
    "no windows": {"windows": {}},
    "a size that is a text": {"windows": {"forward": {"parameters": "many"}}},
    "a size beyond all": {"windows": {"forward": {"parameters": 10**400}}},
    "a negative size": {"windows": {"forward": {"parameters": -1}}},
    "axes a list": {"axes": [1]},
    "no rows": {"rows": 0},
    "rows that the other ranks lack": {"ranks": 3, "rows": 5},
}


def write_damaged(content):
    """What is wrong -> the text of a file with that one thing wrong."""
    *others, last = content["samples"]
    damages = DAMAGES | {name: {"samples": [*others, last | wrong]} for name, wrong in SAMPLE_DAMAGES.items()}
    texts = {name: json.dumps(content | wrong) for name, wrong in damages.items()}
    return texts | {"cut": "{", "no object": "[]", "nothing": '{"schema_version": 1}'}

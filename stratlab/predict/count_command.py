"""The command that counts what no operations file answers, as it can be typed: one that the trainer takes as it
stands, and whose file answers the question that it came from."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stratlab.predict.question import Question
from stratlab.predict.runs_to_try import list_foreign
from stratlab.predict.setting_text import as_text
from stratlab.tables.image_sizes import IMAGE_SIZES
from stratlab.tables.settings import SETTINGS
from stratlab.tables.strategies import STRATEGIES

COUNTED = (
    *(
        "task",
        "model",
        "model_path",
        "init",
        "teacher",
        "strategy",
        "dataset",
        "seq_len",
        "image_size",
        "precision",
    ),
    *(
        "activation_checkpointing",
        "lora_rank",
        "lora_targets",
        "offload",
        "optimizer",
        "momentum",
        "clip_norm",
    ),
    *("packing", "loss_chunk_tokens", "batch_norm", "augment", "label_smoothing", "compile"),
    *("layout", "dimensions", "dp_replicate", "dp_shard", "tp", "pp", "cp", "ep", "cp_kind", "pp_schedule"),
    *("sequence_parallel", "accumulate", "reshard_after_forward", "prefetch_blocks", "persistent_elements"),
    *(
        "zeropp",
        "reduce_dtype",
        "reduce_bucket_mib",
        "gather_bucket_mib",
        "overlap_reduction",
        "static_graph",
    ),
    *("model_layers", "model_hidden", "model_heads", "model_kv_heads", "model_intermediate", "model_vocab"),
    *("model_patch", "micro_batch_size", "global_batch_size"),
)
"""Settings that a count is asked with, where they are not what they are anyway: all that memory depends on."""
ALWAYS = ("model", "strategy", "micro_batch_size", "global_batch_size")
OF_IMAGES = {"dataset": "timm/imagenet-1k"}
OF_TEXT = {"dataset": "metamathqa", "seq_len": "2048"}
"""Data of a size that people ask about: a data set gives a count its classes, channels or nothing."""
NODE = 8
"""GPUs of a node, where nobody has said how many."""


def name_count(question: Question, alike: Sequence[Question] = ()) -> str:
    """`python -m trainer.count ...`, with settings that the question leaves out filled in.

    Args:
        alike: questions that the same command answers with another strategy.
    """
    given = _fill(question)
    words = ["python", "-m", "trainer.count", "--ranks", str(question.ranks)]
    if per_node := _per_node(question, (question, *alike)):
        words += ["--per-node", str(per_node)]
    for name in COUNTED:
        if name in given and (name in ALWAYS or given[name] != as_text(SETTINGS[name]["default"])):
            words += ["--set", f"{name}={given[name]}"]
    words += ["--operations", f"FOLDER/{question.name.replace(' ', '-')}.json"]
    return shlex.join(words)


def fill_question(question: Question) -> Question:
    """As a count is asked: with the settings and the ranks of a node that the command would have."""
    if question.whole:
        return question
    per_node = _per_node(question, (question,)) or question.ranks
    return replace(question, settings=_fill(question), per_node=per_node)


def _fill(question: Question) -> dict[str, str]:
    given = {
        name: text
        for name in COUNTED
        if (text := question.settings.get(name)) and (question.whole or _is_meant(question, name, text))
    }
    if question.whole:
        return given
    rows = str(question.rows)
    batch = {"micro_batch_size": rows, "global_batch_size": str(2 * question.rows * question.ranks)}
    return {**_data_of(given["model"]), **batch, **given}


def _is_meant(question: Question, name: str, text: str) -> bool:
    """Whether the trainer is to hear of it: it was typed, or is no default and not another strategy's.

    What a file of another strategy says of its own knobs and layout the trainer would refuse.
    """
    if name in question.typed or name in ALWAYS:
        return True
    foreign = list_foreign(question.settings.get("strategy", ""))
    return text != as_text(SETTINGS[name]["default"]) and name not in foreign


def group_by_command(questions: Sequence[Question]) -> list[list[Question]]:
    """Questions that one command answers, but for its strategy."""
    groups: dict[str, list[Question]] = {}
    for one in questions:
        given = {name: one.settings.get(name) for name in COUNTED if name != "strategy"}
        key = repr((one.ranks, one.per_node, "strategy" in one.settings or one.name, given))
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def name_count_of_model(model: str, gpus: int, per_node: int, given: Mapping[str, str]) -> str:
    """The same for a model of which no file is there, under the strategy that is asked for, or one that divides all."""
    settings = {"strategy": "fsdp" if gpus > 1 else "single", **given, "model": model}
    rows = int(settings.get("micro_batch_size", 1))
    return name_count(Question(settings["strategy"], settings, gpus, per_node, rows, 0, whole=False))


def _data_of(model: str) -> Mapping[str, str]:
    """Of presets; a model of the hub is taken for one of text, as most are."""
    return OF_IMAGES if model in IMAGE_SIZES else OF_TEXT


def _per_node(question: Question, asked: Sequence[Question]) -> int:
    """0 = all ranks share a node. Strategies by nodes want two at least."""
    ranks, told = question.ranks, question.per_node
    if told:
        return told if told != ranks else 0
    if ranks > NODE and ranks % NODE == 0:
        return NODE
    by_nodes = any(STRATEGIES.get(one.settings.get("strategy", ""), {}).get("by_nodes") for one in asked)
    return ranks // 2 if by_nodes and ranks % 2 == 0 and ranks <= NODE else 0

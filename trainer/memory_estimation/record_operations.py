"""Add operations to the recorded steps: python -m trainer.memory_estimation.record_operations [FAMILY ...]

    draws of sizes ─▶ OperationWatch ─▶ operations by segment ─▶ SizeFit ─▶ RecordedWork, for every size
    one draw of a strategy on one and on several ranks ─▶ the host's work by segment ─▶ HostRecord

Kernels are recorded once per FLAVOR and mode, without the strategy's. What the host does differs by strategy and is
counted at fixed sizes: it depends on the number of weights and layers, hardly on their sizes.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stratlab_spec.memory.recording import FOLDER, LAYERS
from stratlab_spec.memory.sizes import decoder_sizes, image_sizes
from stratlab_spec.memory.step_prediction import FLAVORS, SAME_LAYERS
from stratlab_spec.models.decoder import FAMILIES
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.models.model_specs import read_vit_shape
from stratlab_spec.models.pictures import Pictures, find_pictures
from stratlab_spec.settings.config import Config
from stratlab_spec.step_time.recorded_work import (
    FIRST,
    HostRecord,
    RecordedOperation,
    RecordedWork,
    Segment,
    write_work,
)
from stratlab_spec.strategies import STRATEGIES
from trainer.engines import torch_engine
from trainer.memory_estimation import fake_cluster, steps
from trainer.memory_estimation.operations import Operation, OperationWatch, Work, fuse
from trainer.memory_estimation.record_families import (
    DRAWS,
    EXPERTS_PER_TOKEN,
    IMAGES,
    RECOMPUTED,
    draw_decoder,
    list_tied,
    write_each,
)
from trainer.memory_estimation.rules import read_countable
from trainer.memory_estimation.size_fit import SizeFit, UnequalSteps
from trainer.memory_estimation.storages import replaced
from trainer.models import chunked_cross_entropy

ONE_RANK, SEVERAL = 1, {"single": 1, "hsdp": 4, "zeropp": 4}
"""Ranks of a strategy's host record; others have two."""


def _foreach_norm(parts: list[Tensor]) -> Tensor:
    """Return the norm as a GPU computes it: a CPU's sums rows first."""
    return torch.linalg.vector_norm(torch.stack(list(torch._foreach_norm(parts))))


def record_work(
    config: Config, ranks: int, pictures: Pictures, *, per_node: int = 0, counts_calls: bool = False
) -> OperationWatch:
    """Return the operations of the last micro-batch of a step, and of its update."""
    watch = OperationWatch(counts_calls)
    form = fake_cluster._multiply_into_fp32

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        result = form(a, b)
        watch.multiply(a, b, result)
        return result

    with ExitStack() as stack:
        stack.enter_context(replaced(fake_cluster, _multiply_into_fp32=multiply))
        stack.enter_context(replaced(torch_engine, total_norm=_foreach_norm))
        stack.enter_context(replaced(steps, STEPS=1 + counts_calls))  # the first step makes the state
        if STRATEGIES[config.strategy].deepspeed_stage:
            _show_waits(stack, watch)
        try:
            steps.count_batches([config], ranks, 0, pictures, per_node=per_node, watch=watch)
        finally:
            watch.finish()
    return watch


def _show_waits(stack: ExitStack, watch: OperationWatch) -> None:
    """Let DeepSpeed wait for streams as on a GPU: its CPU accelerator says that it need not."""
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    class Stream:
        def synchronize(self, *_: Any) -> None:
            watch.wait()

        def query(self) -> bool:
            return True

        def record_event(self, *_: Any) -> Any:
            return Stream()

        wait_stream = wait_event = record = wait = lambda *_, **__: None

    one = Stream()
    stack.enter_context(
        replaced(
            CPU_Accelerator,
            Stream=lambda *_, **__: Stream(),
            current_stream=lambda *_, **__: one,
            default_stream=lambda *_, **__: one,
            Event=lambda *_, **__: Stream(),
            is_synchronized_device=lambda _: False,
            resolves_data_dependency=lambda _: False,
            synchronize=lambda *_, **__: watch.wait(),
        )
    )
    stack.enter_context(replaced(Tensor, record_stream=lambda *_: None))


def build_work(
    settings: Mapping[str, Any], draws: Sequence[tuple[Mapping[str, Work], Mapping[str, int]]]
) -> RecordedWork:
    """Return the operations that explain all draws; the host's work is the first draw's.

    Raises:
        UnexplainedSize, UnequalSteps: it cannot be explained by products of sizes.
    """
    fit = SizeFit([sizes for _, sizes in draws], ())
    first = draws[0][0]
    segments = {}
    for name, kept in _kept_names(first, dict(enumerate(LAYERS)) if settings["repeats"] else {}).items():
        rows = _explain_all(fit, name, [work[name].operations for work, _ in draws])
        joined = []
        if name[0].isdecimal():  # only layers are compiled
            joined = _explain_all(fit, name, [fuse(work, name) for work, _ in draws])
        segments[kept] = Segment(rows, first[name].host.as_list(), first[name].waits, joined)
    return RecordedWork(settings, segments)


def _explain_all(fit: SizeFit, name: str, draws: Sequence[Sequence[Operation]]) -> list[RecordedOperation]:
    if len({tuple((one.kind, one.accumulates, len(one.traffic)) for one in each) for each in draws}) > 1:
        raise UnequalSteps(f"{name}: {[len(each) for each in draws]} operations")
    return [_explain(fit, alike) for alike in zip(*draws, strict=True)]


def _explain(fit: SizeFit, alike: Sequence[Operation]) -> RecordedOperation:
    one = alike[0]
    factors = [fit.explain([each.factors[at] for each in alike]) for at in range(len(one.factors))]
    traffic = [fit.explain_bytes([each.traffic[at] for each in alike]) for at in range(len(one.traffic))]
    return RecordedOperation(one.kind, one.launches, tuple(factors), tuple(traffic), one.accumulates)


def _kept_names(work: Mapping[str, Work], kept: Mapping[int, str]) -> dict[str, str]:
    """Return the names of recorded segments -> of kept ones.

    Args:
        kept: layers and their names; empty = all by their numbers.
    """
    names = {name.split(" ")[0] for name in work} - {"optimizer", "start", "head"}
    layers = kept or {at: str(at) for at in range(1 + max(map(int, names)))}
    found = {str(at): kept for at, kept in layers.items()} | {"start": "start", "head": "head"}
    found |= {f"{name} backward": f"{kept} backward" for name, kept in found.items()}
    return {name: kept for name, kept in found.items() if name in work}


def record_family(family: str, folder: Path) -> Iterator[RecordedWork]:
    """Yield the operations of a family of language models, in every mode."""
    chosen = {"experts_per_token": EXPERTS_PER_TOKEN[family]} if FAMILIES[family].experts else {}
    for flavor, recomputed, packing, lora in product(FLAVORS, RECOMPUTED, (True, False), (False, True)):
        if lora and (not packing or recomputed == "selective"):
            continue
        mode = {"flavor": flavor, "activation_checkpointing": recomputed, "packing": packing, "lora": lora}
        yield record_decoder(family, {**mode, **chosen}, folder)


def record_decoder(family: str, mode: Mapping[str, Any], folder: Path) -> RecordedWork:
    """Record one mode of a family of language models: a loss in one chunk, computed at once."""
    flavor, draw, draws = FLAVORS[mode["flavor"]], random.Random(1), []
    for number in range(DRAWS):
        content = draw_decoder(family, list_tied(family)[0], False, draw)
        (folder / "config.json").write_text(json.dumps(content))
        rows, length = draw.choice([3, 5, 7, 11]), 8 * draw.randint(12, 30)
        lora = {"lora_rank": 4 * draw.choice([1, 3, 5, 7]), "init": "scratch"} if mode["lora"] else {}
        settings = _of_text(folder, mode) | lora
        settings |= {"strategy": flavor.strategy, "micro_batch_size": rows, "seq_len": length}
        settings |= {"loss_chunk_tokens": 65_536, "global_batch_size": 2 * flavor.ranks * rows}
        config = _read(settings, flavor.ranks)
        with replaced(chunked_cross_entropy, ROWS_AT_ONCE=65_536):
            sizes, _ = decoder_sizes(config, read_shape(config))
            own = {name: size for name, size in sizes.items() if name == "N+1" or not _of_chunks(name)}
            found = record_work(config, flavor.ranks, find_pictures(config), counts_calls=not number)
        draws.append((found.work, own))
    return build_work({"repeats": True, **mode}, draws)


def _of_chunks(symbol: str) -> bool:
    return symbol in ("C", "Q") or symbol.startswith(("N-", "C-"))


def _of_text(folder: Path, mode: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "task": "text",
        "dataset": "metamathqa",
        "model_path": folder,
        "packing": str(mode.get("packing", True)).lower(),
        "activation_checkpointing": mode.get("activation_checkpointing", "none"),
    }


def _read(settings: Mapping[str, Any], ranks: int, per_node: int = 0) -> Config:
    every = {"run": "record", "precision": "bf16", **settings}
    env = {f"TRAINER_{name.upper()}": str(value) for name, value in every.items()}
    return read_countable(env, ranks, 0, per_node or ranks)


def record_images(family: str) -> Iterator[RecordedWork]:
    """Yield the operations of a family of image models, in every mode."""
    for flavor, recomputed, mixed in product(FLAVORS, ("none", "blocks"), (False, True)):
        if family == "vit" or recomputed == "none":
            mode = {"flavor": flavor, "activation_checkpointing": recomputed, "mixed": mixed, "lora": False}
            yield record_image_model(family, mode)


def record_image_model(family: str, mode: Mapping[str, Any]) -> RecordedWork:
    """Record one mode of a family of image models."""
    flavor, draw, draws = FLAVORS[mode["flavor"]], random.Random(1), []
    for number in range(DRAWS):
        settings = _of_images(family, mode) | {
            "strategy": flavor.strategy,
            "micro_batch_size": draw.choice([3, 5, 7, 9, 11, 13]),
        }
        if family == "vit":
            heads, patch = draw.choice([2, 3, 5, 6, 7]), draw.choice([4, 6, 8, 10, 14])
            settings |= {
                "model_layers": len(LAYERS),
                "model_hidden": heads * 8 * draw.choice([2, 3, 5, 7]),
                "model_heads": heads,
                "model_intermediate": 8 * draw.randint(20, 60),
                "model_patch": patch,
                "image_size": patch * draw.choice([5, 7, 9, 11, 13]),
            }
        settings["global_batch_size"] = 2 * flavor.ranks * settings["micro_batch_size"]
        config, pictures = _read(settings, flavor.ranks), Pictures(draw.randint(90, 1100), 3)
        found = record_work(config, flavor.ranks, pictures, counts_calls=not number)
        sizes = image_sizes(config, read_vit_shape(config), pictures)
        if "A" in sizes:
            sizes["D"] = sizes["H"] // sizes["A"]
        draws.append((found.work, sizes))
    return build_work({"repeats": family == "vit", **mode}, draws)


def _of_images(family: str, mode: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "dataset": "timm/imagenet-1k",
        "model": "vit_tiny" if family == "vit" else family,
        "activation_checkpointing": mode.get("activation_checkpointing", "none"),
        "augment": "mixup" if mode.get("mixed") else "none",
    }


WITH_HOSTS = ("llama", "vit", "resnet")
"""Families with host records; the others' follow from the number of weights (step_time/host_work.py)."""
HOST_LAYERS = {0: "first", 1: "second", 3: "middle", 5: "last"}
"""Layers of a host record that are kept, of six: the middle ones of four would still be in ZeRO-3's first prefetch."""
LARGE = {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 4096}
"""Sizes of a strategy's host record: matrices above ZeRO-3's limit for weights that stay whole."""
LARGE_VIT = {"model_hidden": 1024, "model_heads": 16, "model_intermediate": 4096, "image_size": 32}


def record_hosts(family: str, folder: Path) -> Iterator[HostRecord]:
    """Yield what the host does under each strategy, on one rank and on several."""
    for strategy in STRATEGIES:
        if strategy == "nd":
            continue
        several = SEVERAL.get(strategy, 2)
        for ranks in {ONE_RANK, several} if strategy not in ("hsdp", "zeropp") else {several}:
            if family in IMAGES:
                settings = _of_images(family, {}) | {"micro_batch_size": 8}
                settings |= {"model_layers": 1 + max(HOST_LAYERS), **LARGE_VIT} if family == "vit" else {}
            else:
                content = draw_decoder(family, list_tied(family)[0], False, random.Random(1)) | LARGE
                content["num_hidden_layers"] = 1 + max(HOST_LAYERS)
                if "head_dim" in content:
                    content["head_dim"] = 128
                (folder / "config.json").write_text(json.dumps(content))
                settings = _of_text(folder, {}) | {"micro_batch_size": 2, "seq_len": 512}
            settings |= {"strategy": strategy}
            settings["global_batch_size"] = 2 * ranks * settings["micro_batch_size"]
            per_node = ranks // 2 if ranks == 4 else ranks
            config = _read(settings, ranks, per_node)
            pictures = find_pictures(config)
            found = record_work(config, ranks, pictures, per_node=per_node, counts_calls=True)
            repeats = family == "vit" or family not in IMAGES
            names = _kept_names(found.work, HOST_LAYERS if repeats else {})
            names["optimizer"] = "optimizer"
            rows = {
                kept + part: (one.host.as_list(), one.waits, one.moved, one.gathered)
                for part, work in ((FIRST, found.first), ("", found.work))
                for name, kept in names.items()
                if (one := work[name])
            }
            weights = _count_weights(found.list_weights(), repeats)
            yield HostRecord(strategy, ranks, rows, weights)


def _count_weights(weights: Mapping[str, list[Any]], repeats: bool) -> dict[str, list[int]]:
    """Return place -> [trained weights, their elements]; equal layers as one `layer`."""
    found = {
        place: [len(trained := [row for row in rows if row[3]]), sum(prod(row[1]) for row in trained)]
        for place, rows in weights.items()
    }
    whole = [sum(row[at] for row in found.values()) for at in range(2)]
    if repeats:
        found = {"start": found["start"], "layer": found["0"], "head": found["head"]}
    return found | {"all": whole}


def main(families: Sequence[str]) -> int:
    """Write the operations of these families, or of all, into their files; return 0, or 1 if one cannot be recorded."""

    def write(family: str, folder: Path) -> str:
        found = list(record_images(family) if family in IMAGES else record_family(family, folder))
        hosts = list(record_hosts(family, folder)) if family in WITH_HOSTS else []
        path = FOLDER / f"{family}.json.gz"
        write_work(path, found, hosts)
        return f"{len(found)} modes, {len(hosts)} hosts, {path.stat().st_size / 1000:.1f} kB"

    every = *(name for name in FAMILIES if name not in SAME_LAYERS), *IMAGES
    return write_each(families or every, write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

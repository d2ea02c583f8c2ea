"""Deliberate faults that a careful person could make. The suite fails if one is not caught."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from tests.parity_llm.cases import CP_GATHER, ROUTED_ALIKE_FSDP, Case

Patch = AbstractContextManager[Any]


@dataclass(frozen=True)
class Mutation:
    """A fault and the case that has to notice it."""

    name: str
    case: Case
    plant: Callable[[], Patch]


def _tied_not_summed() -> Patch:
    from trainer.parallel import nd_engine as engine

    whole = engine.ScheduleEngine._sum_tied

    def without_sum(self: Any) -> Any:
        with mock.patch.object(engine.dist, "all_reduce", lambda *_, **__: None):
            return whole(self)

    return mock.patch.object(engine.ScheduleEngine, "_sum_tied", without_sum)


def _averaged_gradients() -> Patch:
    from torch.distributed.fsdp import FSDPModule

    return mock.patch.object(FSDPModule, "set_gradient_divide_factor", lambda *_: None)


def _own_columns(change: Callable[[Any, Any, dict[str, Any]], None]) -> Patch:
    """`change(engine, inputs, known)` edits what a stage is told of its columns."""
    from trainer.parallel.nd_engine import ScheduleEngine

    whole = ScheduleEngine._own_columns

    def changed(self: Any, inputs: Any, labels: Any) -> Any:
        ids, known = whole(self, inputs, labels)
        change(self, inputs, known)
        return ids, known

    return mock.patch.object(ScheduleEngine, "_own_columns", changed)


def _positions_from_zero() -> Patch:
    def first_columns(engine: Any, inputs: Any, known: dict[str, Any]) -> None:
        columns = known["positions"].shape[1]
        known["positions"] = inputs[:, 1, :columns].contiguous()

    return _own_columns(first_columns)


def _documents_see_each_other() -> Patch:
    def one_document(engine: Any, inputs: Any, known: dict[str, Any]) -> None:
        known["documents"] = inputs.new_zeros(inputs[:, 1].shape)

    return _own_columns(one_document)


def _spans(change: Callable[[Any], Any]) -> Patch:
    """`change(spans)` gives other ones, to every layer."""
    from trainer.models import packing

    whole = packing.build_spans
    builders = packing.BUILDERS | {packing.VARLEN: lambda *given: change(whole(*given))}
    return mock.patch.object(packing, "BUILDERS", builders)


def _boundary_one_off() -> Patch:
    def shifted(bounds: Any) -> Any:
        return bounds + (bounds == bounds[1]) * (bounds[1] > 0) * (bounds[1] < bounds[-1])

    return _spans(
        lambda spans: dataclasses.replace(
            spans, of_queries=shifted(spans.of_queries), of_keys=shifted(spans.of_keys)
        )
    )


def _longest_too_short() -> Patch:
    return _spans(lambda spans: dataclasses.replace(spans, longest=spans.longest // 4))


def _mask_of_another_row() -> Patch:
    from trainer.models import packing

    whole = packing.build_mask

    def other(documents: Any, *others: Any) -> Any:
        return whole(documents.roll(1, 0), *others)

    return mock.patch.object(packing, "BUILDERS", packing.BUILDERS | {packing.MASK: other})


def _documents_one_column_off() -> Patch:
    from trainer.models import decoder

    whole = decoder.build_packing

    def shifted(documents: Any, *others: Any) -> Any:
        moved = documents.roll(1, 1)
        moved[:, 0] = 0
        moved[:, 1:] += moved[:, 1:] > 0  # each document begins a column later
        return whole(moved, *others)

    return mock.patch.object(decoder, "build_packing", shifted)


def _mean_of_the_rank() -> Patch:
    import torch.distributed as dist

    from trainer.data.batches import IGNORED
    from trainer.parallel.nd_engine import ScheduleEngine

    whole = ScheduleEngine.train_step

    def local(self: Any, batch: Any, lr: float) -> Any:
        own = sum(int((labels != IGNORED).sum()) for _, labels in batch.micro)
        return whole(self, dataclasses.replace(batch, global_labels=own * dist.get_world_size()), lr)

    return mock.patch.object(ScheduleEngine, "train_step", local)


def _norm_by_is_shard() -> Patch:
    from trainer.parallel import gradnorm

    def plain_shards(gradient: Any) -> tuple[int, ...]:
        sizes = gradient.device_mesh.shape
        return tuple(i for i, p in enumerate(gradient.placements) if p.is_shard() and sizes[i] > 1)

    return mock.patch.object(gradnorm, "split_dims", plain_shards)


def _tied_counted_twice() -> Patch:
    from trainer.parallel.nd_engine import ScheduleEngine

    whole = ScheduleEngine._sum_tied
    return mock.patch.object(ScheduleEngine, "_sum_tied", lambda self: (whole(self), None)[1])


def _experts(change: Callable[[Any, Any, Any], tuple[Any, Any]]) -> Patch:
    """`change(tokens, chosen, shares)` gives other (chosen, shares)."""
    from trainer.parallel.expert import TravellingExperts

    whole = TravellingExperts.forward
    return mock.patch.object(
        TravellingExperts,
        "forward",
        lambda self, t, chosen, shares: whole(self, t, *change(t, chosen, shares)),
    )


def _shares_left_out() -> Patch:
    return _experts(lambda tokens, chosen, shares: (chosen, shares * 0 + 0.5))


def _answers_swapped() -> Patch:
    from trainer.parallel import expert

    whole = expert.answer_tokens
    return mock.patch.object(expert, "answer_tokens", lambda *given: whole(*given).roll(1, 0))


def _rows_of_experts_swapped() -> Patch:
    """The first row of the first expert and the last one of the last meet each other's weights."""
    from trainer.models import experts

    whole = experts.sort_by_expert

    def swapped(chosen: Any, count: int) -> Any:
        order, places, ends = whole(chosen, count)
        order[[0, -1]] = order[[-1, 0]]
        last = len(order) - 1
        return order, (places == 0) * last + (places != 0) * (places != last) * places, ends

    return mock.patch.object(experts, "sort_by_expert", swapped)


def _routed_in_the_type_of_products() -> Patch:
    from trainer.models import router

    def logits(tokens: Any, weight: Any) -> Any:
        return (tokens @ weight.to(tokens.dtype).T).float()

    return mock.patch.object(router._Logits, "apply", logits)


def _partial_sums_kept() -> Patch:
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    return mock.patch.object(
        FSDPParam, "_get_grad_inner_tensor", lambda self, grad: getattr(grad, "_local_tensor", grad)
    )


def _router_not_summed() -> Patch:
    from torch.distributed.tensor import Replicate

    from trainer.parallel import tensor

    return mock.patch.object(tensor, "Partial", Replicate)


def _last_micro_batch_only() -> Patch:
    from trainer.parallel.nd_engine import ScheduleEngine

    whole = ScheduleEngine._accumulate

    def forgetful(self: Any, batch: Any) -> Any:
        return whole(self, dataclasses.replace(batch, micro=batch.micro[-1:]))

    return mock.patch.object(ScheduleEngine, "_accumulate", forgetful)


def _peak_of_the_rank() -> Patch:
    import torch.distributed as dist

    from trainer.models import token_loss

    def only_sums(tensor: Any, op: Any = dist.ReduceOp.SUM, **_: Any) -> None:
        if op == dist.ReduceOp.SUM:
            return whole(tensor, op, **_)

    whole = dist.all_reduce
    return mock.patch.object(token_loss.dist, "all_reduce", only_sums)


def _strided_shards_cut_in_mesh_order() -> Patch:
    from trainer.checkpoint import shards

    def in_order(placements: Any, sizes: Any) -> list[int]:
        return [axis for axis, placement in enumerate(placements) if not placement.is_replicate()]

    return mock.patch.object(shards, "_order", in_order)


def _stages_share_the_micro_batches_positions() -> Patch:
    """Every micro-batch gets the documents and positions of the first row."""

    def first_row(engine: Any, inputs: Any, known: dict[str, Any]) -> None:
        for name in known.keys() - {"labels"}:
            value = known[name]
            known[name] = value[:1].expand_as(value).contiguous()

    return _own_columns(first_row)


def _another_temperature() -> Patch:
    from trainer.models.teacher import Teacher

    whole = Teacher.__init__

    def warmer(self: Any, model: Any, temperature: float, *others: Any) -> None:
        whole(self, model, 1.05 * temperature, *others)

    return mock.patch.object(Teacher, "__init__", warmer)


def _another_teacher() -> Patch:
    """The student's own weights."""
    from tests.parity_llm import training

    return mock.patch.object(training, "TEACHER", "tied")


def _taught_the_first_columns() -> Patch:
    from trainer.models.teacher import Teacher

    whole = Teacher.explain
    return mock.patch.object(
        Teacher, "explain", lambda self, rows, columns=(0, 1): whole(self, rows, (0, columns[1]))
    )


def _taught_the_first_words() -> Patch:
    from trainer.models.taught_tokens import Lesson

    whole = Lesson.__init__

    def first(self: Any, taught: Any, group: Any, words: int, dtype: Any) -> None:
        whole(self, taught, group, words, dtype)
        self._weight = taught.weight[:words].to(dtype)

    return mock.patch.object(Lesson, "__init__", first)


MUTATIONS = (
    Mutation("tied embedding not summed", Case("tied", "pp2"), _tied_not_summed),
    Mutation("tied embedding counted twice in the norm", Case("tied", "pp2"), _tied_counted_twice),
    Mutation("gradients averaged instead of summed", Case("tied", "dp2"), _averaged_gradients),
    Mutation(
        "a temperature 5 % too high",
        Case("tied", strategy="ddp", world=2, packed=True, taught=True),
        _another_temperature,
    ),
    Mutation(
        "a swapped teacher",
        Case("tied", strategy="ddp", world=2, packed=True, taught=True),
        _another_teacher,
    ),
    Mutation(
        "cp ranks are taught the first columns",
        Case("tied", "cp2", packed=True, taught=True),
        _taught_the_first_columns,
    ),
    Mutation(
        "tp ranks are taught the first words", Case("untied", "tp2+sp", taught=True), _taught_the_first_words
    ),
    Mutation("positions of a cp rank start at 0", Case("tied", "cp2"), _positions_from_zero),
    Mutation("mean over the rank's own labels", Case("tied", "dp2"), _mean_of_the_rank),
    Mutation("norm without strided shards", Case("tied", "dp2.tp2"), _norm_by_is_shard),
    Mutation("packed documents see each other", Case("tied", "dp2", packed=True), _documents_see_each_other),
    Mutation(
        "packed documents see each other across cp ranks",
        Case("tied", "cp2", packed=True, settings={"cp_kind": "allgather"}),
        _documents_see_each_other,
    ),
    Mutation(
        "positions of the first row for all, in a pipeline",
        Case("tied", "pp2", packed=True),
        _stages_share_the_micro_batches_positions,
    ),
    Mutation(
        "a document's boundary one off", Case("tied", "dp2", packed=True, varlen=True), _boundary_one_off
    ),
    Mutation(
        "longest document taken too short",
        Case("tied", strategy="fsdp", world=2, packed=True, varlen=True),
        _longest_too_short,
    ),
    Mutation("mask of another row", Case("tied", "dp2", packed=True, micro=2), _mask_of_another_row),
    Mutation(
        "documents one column off across cp ranks",
        Case("tied", "cp2", packed=True, varlen=True, settings=CP_GATHER),
        _documents_one_column_off,
    ),
    Mutation("router's weights not applied", Case("moe", "dp2.ep2"), _shares_left_out),
    Mutation("answers of experts to other tokens", Case("moe", "dp2.ep2"), _answers_swapped),
    Mutation("two rows of experts swapped", Case("moe", strategy="fsdp", world=2), _rows_of_experts_swapped),
    Mutation("routed in the type of products", ROUTED_ALIKE_FSDP, _routed_in_the_type_of_products),
    Mutation(
        "gradients of norms not summed over the sequence's parts", Case("tied", "tp2+sp"), _partial_sums_kept
    ),
    Mutation("gradient of the router not summed over tp", Case("moe", "tp2.ep2+sp"), _router_not_summed),
    Mutation("only the last micro-batch counts", Case("tied", "dp2", micro=2), _last_micro_batch_only),
    Mutation("largest logit of the rank's own words", Case("tied", "tp2"), _peak_of_the_rank),
    Mutation(
        "weights cut in the order of the mesh", Case("tied", "dp2.tp2"), _strided_shards_cut_in_mesh_order
    ),
)

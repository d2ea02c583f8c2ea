"""Deliberate faults that a careful person could make. The suite fails if one is not caught."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

from tests.parity.suite import AVERAGED, WARMER, Fault
from tests.parity_llm.cases import CP_GATHER, ROUTED_ALIKE_FSDP, Case

ENGINE = "trainer.parallel.nd_engine:ScheduleEngine"
BUILDERS = "trainer.models.packing:BUILDERS"
EXPERTS = "trainer.parallel.expert:TravellingExperts.forward"


def _tied_not_summed(whole: Any) -> Any:
    def without_sum(self: Any) -> Any:
        with mock.patch("trainer.parallel.nd_engine.dist.all_reduce", lambda *_, **__: None):
            return whole(self)

    return without_sum


def _head_untied(whole: Any) -> Any:
    def untied(*given: Any, **known: Any) -> Any:
        import torch

        decoder = whole(*given, **known)
        decoder.head.weight = torch.nn.Parameter(decoder.head.weight.detach().clone())
        return decoder

    return untied


def _own_columns(change: Callable[[Any, dict[str, Any]], None]) -> tuple[str, Callable[[Any], Any]]:
    """`change(inputs, known)` edits what a stage is told of its columns."""

    def changed(whole: Any) -> Any:
        def own_columns(self: Any, inputs: Any, labels: Any) -> Any:
            ids, known = whole(self, inputs, labels)
            change(inputs, known)
            return ids, known

        return own_columns

    return f"{ENGINE}._own_columns", changed


def _positions_from_zero(inputs: Any, known: dict[str, Any]) -> None:
    known["positions"] = inputs[:, 1, : known["positions"].shape[1]].contiguous()


def _one_document(inputs: Any, known: dict[str, Any]) -> None:
    known["documents"] = inputs.new_zeros(inputs[:, 1].shape)


def _first_row_for_all(inputs: Any, known: dict[str, Any]) -> None:
    for name in known.keys() - {"labels"}:
        known[name] = known[name][:1].expand_as(known[name]).contiguous()


def _spans(change: Callable[[Any], Any]) -> tuple[str, Callable[[Any], Any]]:
    """`change(spans)` gives other ones, to every layer."""

    def changed(builders: Any) -> Any:
        from trainer.models.packing import VARLEN

        whole = builders[VARLEN]
        return builders | {VARLEN: lambda *given: change(whole(*given))}

    return BUILDERS, changed


def _boundary_one_off(spans: Any) -> Any:
    def shifted(bounds: Any) -> Any:
        return bounds + (bounds == bounds[1]) * (bounds[1] > 0) * (bounds[1] < bounds[-1])

    return replace(spans, of_queries=shifted(spans.of_queries), of_keys=shifted(spans.of_keys))


def _mask_of_another_row(builders: Any) -> Any:
    from trainer.models.packing import MASK

    whole = builders[MASK]
    return builders | {MASK: lambda documents, *others: whole(documents.roll(1, 0), *others)}


def _documents_one_column_off(whole: Any) -> Any:
    def shifted(documents: Any, *others: Any) -> Any:
        moved = documents.roll(1, 1)
        moved[:, 0] = 0
        moved[:, 1:] += moved[:, 1:] > 0  # each document begins a column later
        return whole(moved, *others)

    return shifted


def _mean_of_the_rank(whole: Any) -> Any:
    def local(self: Any, batch: Any, lr: float) -> Any:
        import torch.distributed as dist

        from trainer.data.text.token_rows import IGNORED

        own = sum(int((labels != IGNORED).sum()) for _, labels in batch.micro)
        return whole(self, replace(batch, global_labels=own * dist.get_world_size()), lr)

    return local


def _norm_by_is_shard(whole: Any) -> Any:
    def plain_shards(gradient: Any) -> tuple[int, ...]:
        sizes = gradient.device_mesh.shape
        return tuple(i for i, p in enumerate(gradient.placements) if p.is_shard() and sizes[i] > 1)

    return plain_shards


def _rows_of_experts_swapped(whole: Any) -> Any:
    """The first row of the first expert and the last one of the last meet each other's weights."""

    def swapped(chosen: Any, count: int) -> Any:
        order, places, ends = whole(chosen, count)
        order[[0, -1]] = order[[-1, 0]]
        last = len(order) - 1
        return order, (places == 0) * last + (places != 0) * (places != last) * places, ends

    return swapped


def _router_not_summed(whole: Any) -> Any:
    from torch.distributed.tensor import Replicate

    return Replicate


def _peak_of_the_rank(whole: Any) -> Any:
    """A module that stands for torch.distributed, whose maximum is each rank's own."""
    import types

    def only_sums(tensor: Any, op: Any = whole.ReduceOp.SUM, **options: Any) -> None:
        if op == whole.ReduceOp.SUM:
            whole.all_reduce(tensor, op, **options)

    return types.SimpleNamespace(**vars(whole) | {"all_reduce": only_sums})


def _taught_the_first_words(whole: Any) -> Any:
    def first(self: Any, taught: Any, group: Any, words: int, dtype: Any) -> None:
        whole(self, taught, group, words, dtype)
        self._weight = taught.weight[:words].to(dtype)

    return first


TAUGHT = Case("tied", strategy="ddp", world=2, packed=True, taught=True)
MUTATIONS = (
    Fault("tied embedding not summed", Case("tied", "pp2"), f"{ENGINE}._sum_tied", _tied_not_summed),
    Fault(
        "tied embedding counted twice in the norm",
        Case("tied", "pp2"),
        f"{ENGINE}._sum_tied",
        lambda whole: lambda self: (whole(self), None)[1],
    ),
    Fault("gradients averaged instead of summed", Case("tied", "dp2"), *AVERAGED),
    Fault("a temperature 5 % too high", TAUGHT, *WARMER),
    Fault("a swapped teacher", TAUGHT, "tests.parity_llm.training:TEACHER", lambda whole: "tied"),
    Fault(
        "cp ranks are taught the first columns",
        Case("tied", "cp2", packed=True, taught=True),
        "trainer.models.teacher:Teacher.explain",
        lambda whole: lambda self, rows, columns=(0, 1): whole(self, rows, (0, columns[1])),
    ),
    Fault(
        "tp ranks are taught the first words",
        Case("untied", "tp2+sp", taught=True),
        "trainer.models.chunked_cross_entropy:Lesson.__init__",
        _taught_the_first_words,
    ),
    Fault("positions of a cp rank start at 0", Case("tied", "cp2"), *_own_columns(_positions_from_zero)),
    Fault("mean over the rank's own labels", Case("tied", "dp2"), f"{ENGINE}.train_step", _mean_of_the_rank),
    Fault(
        "norm without strided shards",
        Case("tied", "dp2.tp2"),
        "trainer.engines.torch_engine:split_dims",
        _norm_by_is_shard,
    ),
    Fault("packed documents see each other", Case("tied", "dp2", packed=True), *_own_columns(_one_document)),
    Fault(
        "packed documents see each other across cp ranks",
        Case("tied", "cp2", packed=True, settings=CP_GATHER),
        *_own_columns(_one_document),
    ),
    Fault(
        "positions of the first row for all, in a pipeline",
        Case("tied", "pp2", packed=True),
        *_own_columns(_first_row_for_all),
    ),
    Fault(
        "a document's boundary one off",
        Case("tied", "dp2", packed=True, varlen=True),
        *_spans(_boundary_one_off),
    ),
    Fault(
        "longest document taken too short",
        Case("tied", strategy="fsdp", world=2, packed=True, varlen=True),
        *_spans(lambda spans: replace(spans, longest=spans.longest // 4)),
    ),
    Fault("mask of another row", Case("tied", "dp2", packed=True, micro=2), BUILDERS, _mask_of_another_row),
    Fault(
        "documents one column off across cp ranks",
        Case("tied", "cp2", packed=True, varlen=True, settings=CP_GATHER),
        "trainer.models.decoder:build_packing",
        _documents_one_column_off,
    ),
    Fault(
        "router's weights not applied",
        Case("moe", "dp2.ep2"),
        EXPERTS,
        lambda whole: lambda self, tokens, chosen, shares: whole(self, tokens, chosen, shares * 0 + 0.5),
    ),
    Fault(
        "answers of experts to other tokens",
        Case("moe", "dp2.ep2"),
        "trainer.parallel.expert:answer_tokens",
        lambda whole: lambda *given: whole(*given).roll(1, 0),
    ),
    Fault(
        "two rows of experts swapped",
        Case("moe", strategy="fsdp", world=2),
        "trainer.models.experts:sort_by_expert",
        _rows_of_experts_swapped,
    ),
    Fault(
        "routed in the type of products",
        ROUTED_ALIKE_FSDP,
        "trainer.models.experts:_Logits.apply",
        lambda whole: lambda tokens, weight: (tokens @ weight.to(tokens.dtype).T).float(),
    ),
    Fault(
        "gradients of norms not summed over the sequence's parts",
        Case("tied", "tp2+sp"),
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam._get_grad_inner_tensor",
        lambda whole: lambda self, grad: getattr(grad, "_local_tensor", grad),
    ),
    Fault(
        "gradient of the router not summed over tp",
        Case("moe", "tp2.ep2+sp"),
        "trainer.parallel.tensor:Partial",
        _router_not_summed,
    ),
    Fault(
        "only the last micro-batch counts",
        Case("tied", "dp2", micro=2),
        f"{ENGINE}._accumulate",
        lambda whole: lambda self, batch: whole(self, replace(batch, micro=batch.micro[-1:])),
    ),
    Fault(
        "largest logit of the rank's own words",
        Case("tied", "tp2"),
        "trainer.models.chunked_cross_entropy:dist",
        _peak_of_the_rank,
    ),
    Fault(
        "weights cut in the order of the mesh",
        Case("tied", "dp2.tp2"),
        "trainer.checkpoint.state:_order",
        lambda whole: (
            lambda placements, sizes: [
                axis for axis, placement in enumerate(placements) if not placement.is_replicate()
            ]
        ),
    ),
    Fault(
        "a sliding window ignored",
        Case("gemma3", strategy="single", world=1, packed=True),
        "trainer.models.packing:DocumentMask.bias_of",
        lambda whole: lambda self, window: self.bias,
    ),
    Fault(
        "a soft cap on the logits forgotten",
        Case("gemma3", strategy="single", world=1, packed=True),
        "trainer.models.decoder:read_logits",
        lambda whole: lambda config: (whole(config)[0], 0.0),
    ),
    Fault(
        "a soft cap on the scores forgotten",
        Case("gemma2", strategy="single", world=1, packed=True),
        "trainer.models.decoder:SCORES_KEPT",
        lambda whole: (),
    ),
    Fault(
        "gradients of norms of q and k not summed over tp",
        Case("gemma3", "tp2"),
        "trainer.parallel.tensor:Partial",
        _router_not_summed,
    ),
    Fault(
        "a tied head untied",
        Case("gemma3", strategy="single", world=1, packed=True),
        "trainer.models.decoder_build:build_decoder",
        _head_untied,
    ),
)

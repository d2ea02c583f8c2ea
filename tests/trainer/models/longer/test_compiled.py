"""Compiled blocks: the same gradients, one graph for any documents, the kernel inside of it."""

import pytest
import torch

from tests.trainer.models.small_decoder import (
    build,
    document,
    moved,
    row_of,
)
from trainer.models import packing
from trainer.models.mixed_precision import apply_low_precision
from trainer.models.packing import Offer

LENGTHS = (5, 9, 7)


def test_compiled_layers_hold_the_kernel_in_one_graph_each(monkeypatch):
    class Seen(Exception):
        pass

    def stop(graph, inputs):
        graphs.append(graph)
        raise Seen  # it cannot run here

    graphs: list[torch.fx.GraphModule] = []
    monkeypatch.setattr(packing, "read_offer", lambda device: Offer("cuda", (9, 0), varlen=True))
    decoder = build(packing=True)
    apply_low_precision(decoder, torch.bfloat16)
    decoder.blocks()[0].compile(backend=stop, fullgraph=True)
    with pytest.raises(Exception, match="Seen"):
        decoder(*row_of([document(length, length) for length in LENGTHS]))
    called = [
        str(node.target) for node in graphs[0].graph.nodes if node.op in ("call_function", "call_method")
    ]
    assert [name for name in called if "varlen" in name] == ["torch_attn._varlen_attn"]
    assert not any("repeat" in name or "arange" in name for name in called)


def test_other_documents_need_no_other_graph():
    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    graphs: list[torch.fx.GraphModule] = []
    decoder = moved(build(packing=True))
    alone = moved(build(packing=True))
    for block in decoder.blocks():
        block.compile(backend=keep, fullgraph=True)
    for lengths in ((5, 9, 7), (20,), (3, 3, 3, 3)):
        given = row_of([document(length, length) for length in lengths])
        torch.testing.assert_close(decoder(*given)[0], alone(*given)[0])
    assert len(graphs) == 1

"""Every attention and loss path in bf16 against fp32 by the formula: outputs and gradients.

257 tokens is the trap: cuDNN before 9.15.1 is wrong for lengths that are not a multiple of 128 (pytorch#169849).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from benchmarks.gpu import attention_paths as paths
from benchmarks.gpu.session import NotHere, Session
from trainer.data.text.token_rows import IGNORED
from trainer.models.chunked_cross_entropy import token_loss
from trainer.models.model_with_loss import sum_losses
from trainer.models.packing import causal_attention, choose_path, read_offer

HEADS = ((16, 2, 128), (16, 16, 80), (12, 12, 64))  # heads, kv heads, dim: Qwen2.5-3B, ViT-H, ViT-B
LENGTHS = (2048, 257, 256, 577)
TINY_HEADS = ((4, 2, 16), (4, 4, 8))
TINY_LENGTHS = (33, 64)


def run(session: Session) -> None:
    """Check the losses first; flex last, because each shape is compiled for half a minute."""
    torch.backends.cuda.matmul.allow_tf32 = False
    heads, lengths = (TINY_HEADS, TINY_LENGTHS) if session.tiny else (HEADS, LENGTHS)
    session.measure("loss of the project", check_own_loss, session)
    session.measure("loss chunked", check_chunked_loss, session)
    for tokens in lengths:
        for shape in heads:
            name = _name("attention", tokens, shape)
            session.measure(name, check_attention, session, tokens, shape, needs_s=2)
    for tokens, shape in ((lengths[0], heads[0]), (lengths[1], heads[1])):
        session.measure(_name("flex", tokens, shape), check_flex, session, tokens, shape, needs_s=12)


def _name(kind: str, tokens: int, shape: tuple[int, int, int]) -> str:
    return f"{kind} T{tokens} {shape[0]}/{shape[1]} hd{shape[2]}"


def check_attention(session: Session, tokens: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Return relative errors of output and gradients of each path; a sentence for one that is not available here."""
    heads, kv_heads, _ = shape
    documents = paths.draw_documents(tokens, max(8, tokens // 16), session.device)
    causal, packed = _masks(documents)

    def sdpa(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=heads != kv_heads, **options)

    cases: dict[str, tuple[paths.Path, Tensor | None]] = {
        "project causal": (lambda q, k, v: causal_attention(q, k, v, None, 0.0, None), causal),
        "project packed": (paths.build_project(documents), packed),
        "sdpa causal": (lambda q, k, v: sdpa(q, k, v, is_causal=True), causal),
        "sdpa full": (sdpa, None),
        "varlen": (paths.build_varlen(session, documents, documents.longest), packed),
        "varlen, upper bound": (paths.build_varlen(session, documents, tokens), packed),
        "cudnn full": (paths.build_forced(SDPBackend.CUDNN_ATTENTION), None),
        "cudnn causal": (paths.build_forced(SDPBackend.CUDNN_ATTENTION, is_causal=True), causal),
        "flash causal": (paths.build_forced(SDPBackend.FLASH_ATTENTION, is_causal=True), causal),
        "efficient causal": (paths.build_forced(SDPBackend.EFFICIENT_ATTENTION, is_causal=True), causal),
    }
    masked = paths.build_forced(SDPBackend.EFFICIENT_ATTENTION, attn_mask=packed[None, None])
    cases["efficient packed"] = (masked, packed)
    if tokens % 2 == 0:
        cases["project packed, in two parts"] = (paths.build_project(documents, 2), packed)
    chosen = choose_path(read_offer(documents.starts.device), torch.bfloat16)
    errors = _compare(session, tokens, shape, cases)
    return {"documents": documents.count, "path": chosen, "errors": errors}


def check_flex(session: Session, tokens: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Do the same as `check_attention` for flex_attention."""
    documents = paths.draw_documents(tokens, max(8, tokens // 16), session.device)
    path = paths.build_flex(session, documents)
    return {"errors": _compare(session, tokens, shape, {"flex": (path, _masks(documents)[1])})}


def _masks(documents: paths.Documents) -> tuple[Tensor, Tensor]:
    """Return causal, and causal inside documents: bool [token, token]."""
    starts = documents.starts[0]
    order = torch.arange(len(starts), device=starts.device)
    causal = order[:, None] >= order[None, :]
    return causal, causal & (starts[:, None] == starts[None, :])


def _compare(
    session: Session,
    tokens: int,
    shape: tuple[int, int, int],
    cases: Mapping[str, tuple[paths.Path, Tensor | None]],
) -> dict[str, Any]:
    heads, kv_heads, dim = shape
    torch.manual_seed(tokens + dim)
    inputs = paths.draw_inputs(session.device, 1, heads, kv_heads, tokens, dim)
    upstream = torch.randn_like(inputs[0])
    wanted: dict[int, list[Tensor]] = {}
    errors: dict[str, Any] = {}
    for name, (path, allowed) in cases.items():
        if id(allowed) not in wanted:
            exact = [t.detach().float().requires_grad_() for t in inputs]
            wanted[id(allowed)] = paths.run_both_ways(
                lambda q, k, v, allowed=allowed: paths.attend_exactly(q, k, v, allowed),  # type: ignore[misc]
                exact,
                upstream.float(),
            )
        try:
            found = paths.run_both_ways(path, inputs, upstream)
        except Exception as failure:  # this version or card does not have the path
            errors[name] = f"{type(failure).__name__}: {failure}"[:160]
            continue
        pairs = zip(("out", "dq", "dk", "dv"), found, wanted[id(allowed)], strict=True)
        errors[name] = {what: paths.relative_error(a, b) for what, a, b in pairs}
    if not any(isinstance(entry, dict) for entry in errors.values()):
        raise NotHere("; ".join(f"{name}: {text}" for name, text in errors.items()))
    own = [name for name in errors if name.startswith("project") and isinstance(errors[name], str)]
    if own:
        raise RuntimeError(f"the project's own path failed: {errors[own[0]]}")
    return errors


def check_own_loss(session: Session) -> dict[str, Any]:
    """Return `trainer.models.model_with_loss.sum_losses` of bf16 logits against fp64."""
    rows, classes = (8, 320) if session.tiny else (512, 151936)
    logits = torch.randn(1, rows, classes, device=session.device, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, classes, (1, rows), device=session.device)
    labels[0, ::3] = -100
    count = int((labels >= 0).sum())
    loss = sum_losses(logits, labels) / count
    loss.backward()
    exact = logits.detach().double().requires_grad_()
    wanted = F.cross_entropy(exact[0], labels[0], ignore_index=-100, reduction="sum") / count
    wanted.backward()
    assert logits.grad is not None and exact.grad is not None
    gradient = paths.relative_error(logits.grad, exact.grad)
    return {"errors": {"project": {"loss": paths.relative_error(loss, wanted), "gradient": gradient}}}


def check_chunked_loss(session: Session) -> dict[str, Any]:
    """Return head and loss, in chunks and plain, against fp32."""
    sizes = (64, 16, 320) if session.tiny else (1024, 2048, 32000)
    states, weight, labels = draw_case(session.device, *sizes)
    exact = [t.detach().float().requires_grad_() for t in (states, weight)]
    wanted = plain_loss(*exact, labels)
    wanted.backward()
    ways = {"plain": 0, "4 chunks": 4, "8 chunks": 8}
    errors = {}
    for name, chunks in ways.items():
        states.grad = weight.grad = None
        loss = chunked_loss(states, weight, labels, chunks) if chunks else plain_loss(states, weight, labels)
        loss.backward()
        found = (loss, states.grad, weight.grad)
        pairs = zip(("loss", "states", "weight"), found, (wanted, exact[0].grad, exact[1].grad), strict=True)
        errors[name] = {what: paths.relative_error(a, b) for what, a, b in pairs}  # type: ignore[arg-type]
    return {"errors": errors}


def chunked_loss(states: Tensor, weight: Tensor, labels: Tensor, chunks: int) -> Tensor:
    """Return the project's: sum of the losses of the labels that count.

    Args:
        states: [token, hidden]. weight: [class, hidden]. labels: int64 [token], IGNORED = none.
    """
    return token_loss(states, weight, labels, chunk_tokens=math.ceil(len(labels) / chunks))


def plain_loss(states: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Return the loss with all logits at once, as torch computes it."""
    return F.cross_entropy((states @ weight.T).float(), labels, ignore_index=IGNORED, reduction="sum")


def draw_case(
    device: str, tokens: int, hidden: int, classes: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor, Tensor]:
    """Return states, weight and labels, three of ten without a label; seeded."""
    torch.manual_seed(1)
    states = torch.randn(tokens, hidden, device=device, dtype=dtype, requires_grad=True)
    weight = torch.randn(classes, hidden, device=device, dtype=dtype).mul_(0.02).requires_grad_()
    labels = torch.randint(0, classes, (tokens,), device=device)
    labels[torch.rand(tokens, device=device) < 0.3] = IGNORED
    return states, weight, labels

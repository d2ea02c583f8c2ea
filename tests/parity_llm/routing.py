"""Where the reference sent each token, and how another run is made to send it there too.

A token is found again by its logits: whatever rank it is on, those of the reference that are nearest are its own, for
rounding moves them less than tokens lie apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from torch import Tensor

Routing = dict[str, list[Any]]
"""Router by its place in the model -> [logits, chosen experts] of each of its calls."""


@contextmanager
def routing_kept(model: Any, found: Routing) -> Iterator[None]:
    """Writes down where the tokens go."""
    from trainer.models.experts import Router

    names, choose = _names(model), Router.choose

    def watched(self: Any, logits: Tensor) -> Tensor:
        chosen = choose(self, logits)
        found.setdefault(names[id(self)], []).append([logits.detach().clone(), chosen])
        return chosen

    with mock.patch.object(Router, "choose", watched):
        yield


@contextmanager
def routed_as(model: Any, kept: Routing, moved: list[float]) -> Iterator[None]:
    """Sends each token where `kept` says; adds to `moved` the share that would have gone elsewhere, by call."""
    import torch

    from trainer.models.experts import Router

    names, choose = _names(model), Router.choose
    known = {
        name: tuple(torch.cat(parts) for parts in zip(*calls, strict=True)) for name, calls in kept.items()
    }

    def told(self: Any, logits: Tensor) -> Tensor:
        there, chosen = known[names[id(self)]]
        alike = chosen[torch.cdist(logits.detach(), there).argmin(1)]
        own = choose(self, logits)
        moved.append(float((own.sort(1).values != alike.sort(1).values).any(1).float().mean()))
        return alike

    with mock.patch.object(Router, "choose", told):
        yield


def _names(model: Any) -> dict[int, str]:
    """id of a router -> `layers.3`, the same whatever wraps or cuts the model."""
    from trainer.models.experts import Router

    modules = [(name, module) for name, module in model.named_modules() if isinstance(module, Router)]
    return {id(module): re.search(r"layers\.\d+", name)[0] for name, module in modules}  # type: ignore[index]

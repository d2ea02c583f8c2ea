"""What an optimizer can be told besides rate and decay: its argument in torch.optim -> the settings it is made of."""

from __future__ import annotations

OPTIMIZERS: dict[str, dict[str, tuple[str, ...]]] = {
    "sgd": {"momentum": ("momentum",), "nesterov": ("nesterov",)},
    "adamw": {"betas": ("beta1", "beta2"), "eps": ("eps",)},
}
SHARED = ("lr", "weight_decay")
ARGUMENTS = (*SHARED, *(name for arguments in OPTIMIZERS.values() for name in arguments))
"""Of all of them."""


def list_own_settings(optimizer: str) -> tuple[str, ...]:
    """Settings that this optimizer has and the other ones have not."""
    return tuple(setting for settings in OPTIMIZERS[optimizer].values() for setting in settings)

"""Which task the settings mean."""

from __future__ import annotations

import pytest

from stratlab_spec.settings.config import Config
from trainer.data.batches import Share
from trainer.tasks import open_task


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, "image"),
        ({"model": "qwen_tiny"}, "text"),
        ({"dataset": "arithmetic", "model": "owner/name"}, "text"),
        ({"dataset": "owner/photos", "model": "owner/name"}, "image"),
        ({"dataset": "owner/words", "model": "owner/name", "task": "text"}, "text"),
    ],
)
def test_the_kind_follows_from_model_data_or_task(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], kind: str
) -> None:
    opened: dict[str, tuple[object, ...]] = {}
    for name, place in (("text", "text_task.TextTask"), ("image", "image_task.ImageTask")):
        monkeypatch.setattr(f"trainer.tasks.{place}", lambda *given, name=name: opened.update({name: given}))
    config, share = Config(run="x", **settings), Share(1, 2)
    open_task(config, share, "cpu")
    assert opened == {kind: (config, share, "cpu")}

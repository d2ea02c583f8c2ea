"""The plain Hugging Face model in one process: the whole batch at once, every document in a row of its own.

Nothing of trainer/models, trainer/parallel or trainer/strategies is in here.
"""

from pathlib import Path
from typing import Any

from tests.parity_llm.cases import CLIP, DISTILLED, RATE, STEPS, TEACHER, WEIGHT_DECAY
from tests.parity_llm.models import draw_rows, split_documents


def train_plain_models(models: list[tuple[str, bool, bool]], checkpoints: Path, out: Path) -> None:
    """Writes `<model>, <packed or padded>[, taught].pt` for each (model, packed, taught)."""
    import torch

    torch.set_num_threads(1)
    for model, packed, taught in models:
        teacher = checkpoints / TEACHER if taught else None
        found = _train(checkpoints / model, packed, teacher)
        torch.save(found, out / f"{plain_name(model, packed, taught)}.pt")


def plain_name(model: str, packed: bool, taught: bool) -> str:
    return f"{model}, {'packed' if packed else 'padded'}{', taught' if taught else ''}"


def _train(folder: Path, packed: bool, teacher: Path | None) -> dict[str, Any]:
    import torch
    import torch.nn.functional as F
    from transformers import AutoModelForCausalLM

    from trainer.data.text.token_rows import IGNORED

    def load(path: Path) -> Any:
        # not every family has the faster one
        return AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32)

    model = load(folder).train()
    master = load(teacher).eval() if teacher else None
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=WEIGHT_DECAY)
    losses, norms, gradients = [], [], {}
    for step in range(1, STEPS + 1):
        ids, labels = split_documents(*draw_rows(step, packed))
        logits = model(input_ids=ids, use_cache=False).logits
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
        if master is not None:
            with torch.no_grad():
                wanted = master(input_ids=ids, use_cache=False).logits
            total = _taught(total, logits[labels != IGNORED], wanted[labels != IGNORED])
        loss = total / (labels != IGNORED).sum()
        loss.backward()
        if step == 1:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        losses.append(float(loss))
        optimizer.step()
        optimizer.zero_grad()
    gradients = {name: g * min(1.0, CLIP / (norms[0] + 1e-6)) for name, g in gradients.items()}
    return {"losses": losses, "norms": norms, "gradients": gradients, "weights": weights}


def _taught(total: Any, logits: Any, wanted: Any) -> Any:
    """Hinton et al. (arXiv 1503.02531), of the tokens that are learnt: logits [token, word] of both."""
    import torch.nn.functional as F

    temperature, weight = DISTILLED["distill_temperature"], DISTILLED["distill_alpha"]
    soft = F.softmax(wanted / temperature, 1)
    distance = (soft * (soft.log() - F.log_softmax(logits / temperature, 1))).sum()
    return (1 - weight) * total + weight * temperature**2 * distance

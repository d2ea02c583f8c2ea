"""Render the turns of a chat with the tokenizer's template, and find the characters that the model learns.

A template may mark them itself (`{% generation %}`). With other templates, the chat before a turn of the assistant is
rendered with the prompt for the next answer; the turn begins at the end of that text.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from stratlab_spec.settings.config import ConfigError
from trainer.data.text.text_form import Turn, Turns
from trainer.data.text.tokenizer import OWN_TEMPLATES, Span, render_with_mask

Messages = list[dict[str, str]]


class Rendered(NamedTuple):
    """A text and its learned characters, in order and without overlap."""

    text: str
    spans: list[Span]


class ChatRefused(ConfigError):
    """A chat that cannot be rendered."""


def arrange_turns(turns: Turns) -> tuple[Turns, bool]:
    """Return turns that begin with a question and alternate, and whether that changed them.

    Other roles than the assistant's become the user's, except for a system text at the start. Texts of one role that
    follow each other are joined by an empty line. Answers before the first question are dropped.
    """
    found: Turns = []
    for turn in turns:
        at_start = not found or found[-1].role == "system"
        role = turn.role if turn.role == "assistant" or (turn.role == "system" and at_start) else "user"
        if found and found[-1].role == role:
            found[-1] = Turn(role, f"{found[-1].text}\n\n{turn.text}")
        elif role != "assistant" or (found and found[-1].role == "user"):
            found.append(Turn(role, turn.text))
    return found, found != turns


def render_chat(
    tokenizer: Any, controls: re.Pattern[str], turns: Turns, row: str, *, merges: bool
) -> Rendered:
    """Return the rendered chat up to the end of its last answer.

    Args:
        controls: matches control tokens.
        row: where the chat is stored, for messages.
        merges: if the template rejects a system text, put it in front of the first question.

    Raises:
        ChatRefused: the template rejects a turn, or does not put an answer after its own prompt.
    """
    if tokenizer.get_chat_template() in OWN_TEMPLATES and (wrong := _find_unexpected(turns)) is not None:
        raise refuse_turn(turns, wrong, row, "turns must alternate, user first")
    messages = [{"role": turn.role, "content": turn.text} for turn in turns]
    try:
        marked = render_with_mask(tokenizer, messages)
        whole = marked[0] if marked else tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception as failure:  # errors of jinja or of the template itself
        if merges and turns[0].role == "system" and len(turns) > 1:
            first = Turn(turns[1].role, f"{turns[0].text}\n\n{turns[1].text}")
            return render_chat(tokenizer, controls, [first, *turns[2:]], row, merges=False)
        raise refuse_turn(turns, _find_rejected(tokenizer, messages), row, str(failure)) from failure
    spans = marked[1] if marked else _find_answers(tokenizer, controls, messages, whole, row)
    if not spans:
        raise _no_answer(row, "it marks no text as generated", whole)
    end = max(spans[-1][1], len(whole.rstrip()))
    return Rendered(whole[:end], spans)


def _find_answers(
    tokenizer: Any, controls: re.Pattern[str], messages: Messages, whole: str, row: str
) -> list[Span]:
    spans, done = [], len(whole.rstrip())
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = messages[:number]
        prompt = tokenizer.apply_chat_template(before, tokenize=False, add_generation_prompt=True)
        if not whole.startswith(prompt):
            raise _no_answer(row, f"{prompt!r} is not the start of it", whole)
        start, end = len(prompt), done
        if number < len(messages) - 1:
            until = tokenizer.apply_chat_template(messages[: number + 1], tokenize=False).rstrip()
            end = len(until)
            if not whole.startswith(until):  # templates may format the last answer differently
                end = _find_end(controls, message["content"].strip(), whole, start)
        spans.append((start, end))
    return spans


def _find_end(controls: re.Pattern[str], answer: str, whole: str, start: int) -> int:
    """Return the end of the first control token after the answer, else the end of the answer."""
    found = whole.find(answer, start)
    end = start if found < 0 else found + len(answer)
    token = controls.search(whole, end)
    return token.end() if token else end


def _find_unexpected(turns: Turns) -> int | None:
    """Return the first turn that is not in the order system, user, assistant, user, ...; None if all are."""
    asked = [number for number, turn in enumerate(turns) if number or turn.role != "system"]
    for place, number in enumerate(asked):
        if turns[number].role != ("user", "assistant")[place % 2]:
            return number
    return None


def _find_rejected(tokenizer: Any, messages: Messages) -> int:
    """Return the first turn with which the template fails."""
    for number in range(len(messages)):
        try:
            tokenizer.apply_chat_template(messages[: number + 1], tokenize=False)
        except Exception:  # this turn is the searched one
            return number
    return len(messages) - 1


def refuse_turn(turns: Turns, number: int, row: str, reason: str) -> ChatRefused:
    """Return the error for a turn of a row."""
    return ChatRefused(
        f"{row}: turn {number} has the role {turns[number].role}, which the chat template rejects: {reason}; correct "
        "the row, choose another TRAINER_TOKENIZER, or set TRAINER_CHAT_ROLES=merge [SL-chat-template-refuses]"
    )


def _no_answer(row: str, reason: str, whole: str) -> ChatRefused:
    return ChatRefused(
        f"{row}: the chat template of TRAINER_TOKENIZER does not put the answer after its generation prompt, so they "
        f"cannot be separated: {reason}: {whole!r} [SL-chat-template-order]"
    )

"""What became of conversations, in words."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from scoremode.report.layout import counted, printable

__all__ = ["chat_sentence", "chat_words", "conversation_rows", "template_rows"]

_LONG = {"truncate": "cut there", "split": "split", "skip": "left out"}
# As a sentence of a card.
_RULES = {"truncate": "cut", "split": "split into windows", "skip": "left out"}
_SCORED = {
    "assistant": "the assistant's targets",
    "completion": "the last turn's targets",
    "all": "all targets",
}


# Why what an assistant said is no target, by the record's names. Earlier releases counted fewer.
_NOT_SCORED: dict[str, Callable[[int], str]] = {
    "unmarked": lambda n: f"{counted(n, 'turn')} that the chat template doesn't mark as generated",
    "outside": lambda n: f"{counted(n, 'token')} outside the template's marks",
    "prompted": lambda n: f"{counted(n, 'token')} marked, and given by the prompt",
    "straddling": lambda n: f"{counted(n, 'token')} shared with what the model didn't generate",
    "behind": lambda n: f"{counted(n, 'token')} behind the end of a turn",
    "opening": lambda n: f"{counted(n, 'token')} with nothing before",
    "beyond": lambda n: f"{counted(n, 'token')} beyond the context length",
}


def chat_words(protocol: Mapping[str, Any]) -> str:
    """A protocol of conversations in a line."""
    return (
        f"{protocol['name']} ({_SCORED[protocol['scored']]}; longer than "
        f"{protocol['context_length']:,} tokens: {_LONG[protocol['long']]})"
    )


def chat_sentence(protocol: Mapping[str, Any], chats: Mapping[str, Any]) -> str:
    """What is scored of conversations, for a page that says it in a sentence."""
    template = chats["template"]
    by = "" if template is None else f" by chat template {template['sha256'][:12]}"
    return (
        f"each conversation by itself{by}, those longer than {protocol['context_length']:,} tokens "
        f"{_RULES[protocol['long']]}, {_SCORED[protocol['scored']]}"
    )


def conversation_rows(corpus: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows on conversations, their turns, and what isn't scored of these; none of a text."""
    chats = corpus.get("conversations")
    if chats is None:
        return []
    said = [counted(chats["read"], "conversation")]
    kinds = {
        "bad_rows": "bad and left out",
        "long": "longer than a window",
        "lost": "without a target left",
    }
    said += [f"{chats[name]:,} {words}" for name, words in kinds.items() if chats[name]]
    turns = [counted(chats["turns"], "turn")] if chats["turns"] else []
    if turns and (spread := chats.get("turn_targets")):
        turns[0] += f" of {spread['least']:,} to {spread['most']:,} targets"
        turns[0] += f" (median {spread['median']:,g})"
    kinds = {
        "apart": "with a text of their own",
        "unended": "without an end",
        "unprompted": "that begin otherwise than the template prompts",
    }
    turns += [f"{chats[name]:,} {words}" for name, words in kinds.items() if chats[name]]
    rows = [("turns", "; ".join(", ".join(part) for part in (said, turns) if part))]
    if left := [words(chats[name]) for name, words in _NOT_SCORED.items() if chats.get(name)]:
        rows.append(("not scored", ", ".join(left)))
    return rows


def template_rows(corpus: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows on the chat template and on rows that were left out, none of a text."""
    chats = corpus.get("conversations")
    if chats is None:
        return []
    rows = [("left out", printable(line)) for line in chats["bad"]]
    if (found := chats["template"]) is None:
        return rows
    given = f", given {json.dumps(found['arguments'])}" if found["arguments"] else ""
    day = f", for which today is {found['date']}" if found["date"] else ""
    words = f"{found['source']}, sha256 {found['sha256'][:12]}…{given}{day}"
    return [("chat template", printable(words)), *rows]

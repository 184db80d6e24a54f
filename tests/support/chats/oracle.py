"""What a model generated of a chat, by other code than ours: transformers' rendering and its marks, a
text character by character, a token by its characters.

Nothing here is imported from scoremode.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

__all__ = ["Refused", "Said", "said_by"]

# Two replies that have nothing in common, with each other or with a prompt.
_REPLIES = "\u2e18\u2e2e"


class Refused(Exception):
    """A chat whose turns a template doesn't write one behind the other."""


@dataclass
class Said:
    """What was said in a chat.

    - `targets`: each token that the model generated, with all ids before it, and how often.
    - `turns`: how many of these each turn has; of turns without a mark nothing.
    - `named`: how many other tokens of its turns there are, by their kind.
    """

    targets: Counter[tuple[int, ...]] = field(default_factory=Counter)
    turns: list[int] = field(default_factory=list)
    named: Counter[str] = field(default_factory=Counter)


def said_by(
    messages: list[dict[str, Any]], jinja: str, tokenizer: Tokenizer, ends: set[int], **values: Any
) -> Said:
    """What the assistant of `messages` said, each turn as it was when it ended the chat.

    Raises Refused, and what a template raises.
    """
    marks_turns, found = "{% generation %}" in jinja, Said()

    def render(chat: list[dict[str, Any]], *, prompts: bool = False) -> tuple[str, list[Any]]:
        texts, marks = render_jinja_template(
            [chat],
            chat_template=jinja,
            return_assistant_tokens_mask=marks_turns,
            add_generation_prompt=prompts,
            **values,
        )
        return texts[0], marks[0] if marks_turns else []

    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        text, marks = render(messages[: i + 1])
        begin = _begin(messages[:i], text, render, marks_turns)
        owned = [not marks_turns and c >= begin for c in range(len(text))]
        marked = list(owned)
        for start, stop in marks:
            for c in range(start, stop):
                marked[c], owned[c] = True, c >= begin
        # A mark of an earlier turn is no part of this one.
        earlier = [stop for start, stop in marks if stop <= begin]
        marked[: max(earlier, default=0)] = [False] * max(earlier, default=0)
        # A mark may hold nothing: the model ends its turn at once.
        empty = {start for start, stop in marks if begin <= start == stop}
        _add(found, text, begin, owned, marked, empty, tokenizer, ends)
    return found


def _begin(before: list[dict[str, Any]], text: str, render: Any, marks_turns: bool) -> int:
    """Where the model goes on in `text`: behind what its prompt has in common with any reply."""
    if not before:
        if not marks_turns:
            raise Refused
        # What the prompt for a later turn has more than the chat before it stands in front of this one.
        later = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
        opens = render(later, prompts=True)[0].removeprefix(render(later)[0])
        return text.index(opens) + len(opens) if opens else 0
    prompt = render(before, prompts=True)[0]
    if text.startswith(prompt):
        return len(prompt)
    if not text.startswith(render(before)[0]):
        raise Refused
    replies = [render([*before, {"role": "assistant", "content": c}])[0] for c in _REPLIES]
    columns = zip(prompt, text, *replies, strict=False)
    return next(i for i, column in enumerate(columns) if len(set(column)) > 1)


def _add(
    found: Said,
    text: str,
    begin: int,
    owned: list[bool],
    marked: list[bool],
    empty: set[int],
    tokenizer: Tokenizer,
    ends: set[int],
) -> None:
    """Adds the tokens of one turn to what was said."""
    encoded = tokenizer.encode(text, add_special_tokens=False)
    ids, kinds = encoded.ids, []
    for start, stop in encoded.offsets:
        own = set(owned[start:stop])
        kinds.append("straddling" if len(own) > 1 else "target" if own == {True} else "outside")
    ended, inside = False, False
    for i, (start, _) in enumerate(encoded.offsets):
        is_owned = any(owned[slice(*encoded.offsets[i])])
        if is_owned and not (inside and any(owned[max(start - 1, 0) : start])):
            ended = False  # another part begins
        elif ids[i] in ends and not is_owned and (start in empty or (inside and not ended)):
            kinds[i] = "target"  # right behind a mark
        if ended and (is_owned or not any(owned[start:])):
            kinds[i] = "behind"
        ended = ended or (kinds[i] == "target" and ids[i] in ends)
        inside = is_owned
    targets = 0
    for i, (start, stop) in enumerate(encoded.offsets):
        if all(marked[start:stop]) and stop <= begin:
            found.named["prompted"] += 1
        if stop <= begin:
            continue
        if kinds[i] == "target" and i:
            found.targets[tuple(ids[: i + 1])] += 1
            targets += 1
        else:
            found.named["opening" if kinds[i] == "target" else kinds[i]] += 1
    if any(owned) or empty:
        found.turns.append(targets)
    else:
        found.named["unmarked"] += 1

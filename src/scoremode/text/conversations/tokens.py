"""Conversations as token ids, and which of them count.

A text is tokenized once, with what its template says of BOS. A token counts if all its characters are
the model's: one that a prompt's last character shares with a reply's first, the model could not have
generated. The model stops at the first token that ends a turn, so it is the last that counts.

A row that a model wrote may have the ids that it generated, which need not be those that a tokenizer
makes of their text. They are taken where they spell that very text.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import CorpusError
from scoremode.text.conversations.messages import Conversation
from scoremode.text.conversations.template import ChatTemplate
from scoremode.text.conversations.turns import Scored, Turn, turns
from scoremode.text.tokenizer import Tokenizer

__all__ = ["Spoken", "Tally", "Tokens", "tokens_of"]


@dataclass(frozen=True, eq=False)
class Tokens:
    """A text of a conversation.

    - `ids` int32 [n]: its tokens; `counts` bool [n]: whether each is a target, the first never is.
    """

    ids: NDArray[np.int32]
    counts: NDArray[np.bool_]


@dataclass
class Tally:
    """How often something was so, over all conversations of a text.

    - `turns`: that count, of which `apart` have a text of their own, `unended` end without a token that
      ends a turn, and `unprompted` begin otherwise than the template prompts for one.
    - `straddling`: tokens that hold a prompt's last character and a reply's first, which don't count.
    - `respelled`: turns that are scored in the ids that their row has.
    """

    turns: int = 0
    apart: int = 0
    unended: int = 0
    unprompted: int = 0
    straddling: int = 0
    respelled: int = 0

    def add(self, other: "Tally") -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True, eq=False)
class Spoken:
    """What turns conversations into tokens.

    - `template`: None where there is none; `ends`: ids of tokens with which a model ends a turn.
    - `scored`: which targets count. `tally`: what is counted meanwhile.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    ends: frozenset[int]
    scored: Scored = "assistant"
    tally: Tally = field(default_factory=Tally)


def tokens_of(conversation: Conversation, spoken: Spoken) -> list[Tokens]:
    """The texts of a conversation, in the order of their last turns.

    Raises CorpusError, naming the conversation, for one without a target and all that `turns` raises.
    """
    found = [
        _tokens(conversation, turn, spoken)
        for turn in turns(conversation, spoken.template, spoken.scored)
    ]
    shared: list[Tokens] = []
    for tokens in reversed(found):
        if shared and _begins(shared[-1], tokens):
            shared[-1].counts[: len(tokens.ids)] |= tokens.counts
        else:
            shared.append(tokens)
    spoken.tally.turns += len(found)
    spoken.tally.apart += len(shared) - 1
    if not any(tokens.counts.any() for tokens in shared):
        raise CorpusError(f"{conversation.where}: no token of it is a target")
    return [tokens for tokens in reversed(shared) if tokens.counts.any()]


def _tokens(conversation: Conversation, turn: Turn, spoken: Spoken) -> Tokens:
    """The tokens of a turn with all before it, and none behind its end."""
    ids, spans = spoken.tokenizer.encode_with_spans(turn.text)
    if conversation.text is not None:
        ids, spans = _with_sides(ids, spans, spoken.tokenizer)
    if spoken.scored == "all":
        return _targets(ids, range(len(ids)))
    begin = int(np.searchsorted(spans[:, 1], turn.begin, "right"))
    if begin < len(ids) and spans[begin, 0] < turn.begin:
        spoken.tally.straddling += turn.as_prompted
        begin += turn.as_prompted
    spoken.tally.unprompted += not turn.as_prompted
    end = int(np.searchsorted(spans[:, 0], turn.end, "left"))
    # A template's marks may leave the token out that ends the turn.
    last = next(
        (i for i in range(begin, min(end + 1, len(ids))) if int(ids[i]) in spoken.ends), None
    )
    spoken.tally.unended += last is None
    end = end if last is None else last + 1
    own = _as_generated(conversation, turn, ids[:end], spoken)
    if own is not None:
        spoken.tally.respelled += 1
        ids, begin = own
        end = len(ids)
    return _targets(ids[:end], range(begin, end))


def _as_generated(
    conversation: Conversation, turn: Turn, ids: NDArray[np.int32], spoken: Spoken
) -> tuple[NDArray[np.int32], int] | None:
    """The ids of the last turn and all before it as the row has them, and where the turn begins; None
    where it has none that spell the text of `ids`."""
    own, tokenizer = conversation.generated_ids, spoken.tokenizer
    if own is None or not turn.is_last or not all(0 <= i < tokenizer.size for i in own):
        return None
    front, spans = tokenizer.encode_with_spans(turn.text[: turn.begin])
    if conversation.text is not None:
        front, _ = _with_sides(front, spans, tokenizer)
        front = front[: len(front) - len(tokenizer.added[1])]
    whole = np.concatenate([front, np.array(own, np.int32)])
    spelled, said = (tokenizer.decode(i.tolist()) for i in (whole, ids))
    return (whole, len(front)) if spelled == said else None


def _with_sides(
    ids: NDArray[np.int32], spans: NDArray[np.int64], tokenizer: Tokenizer
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """A prompt and its completion with what the tokenizer puts around a text."""
    front, behind = tokenizer.added
    size = int(spans[-1, 1]) if len(spans) else 0
    sides = [np.full((len(side), 2), at) for side, at in ((front, 0), (behind, size))]
    return (
        np.concatenate([np.array(front, np.int32), ids, np.array(behind, np.int32)]),
        np.concatenate([sides[0], spans, sides[1]]).astype(np.int64),
    )


def _targets(ids: NDArray[np.int32], places: Iterable[int]) -> Tokens:
    counts = np.zeros(len(ids), bool)
    counts[list(places)] = True
    # Nothing comes before it.
    counts[:1] = False
    return Tokens(ids, counts)


def _begins(whole: Tokens, part: Tokens) -> bool:
    n = len(part.ids)
    return n <= len(whole.ids) and bool(np.array_equal(whole.ids[:n], part.ids))

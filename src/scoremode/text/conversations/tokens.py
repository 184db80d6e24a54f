"""Conversations as token ids, and which of them count.

A text is tokenized once, with what its template says of BOS. A token counts if all its characters are
the model's: one that a prompt's last character shares with a reply's first, the model could not have
generated. The model stops at the first token that ends a turn, so it is the last that counts; where a
template marks several parts of a turn, the last of each. What doesn't count is counted by its reason.

A row that a model wrote may have the ids that it generated, which need not be those that a tokenizer
makes of their text. They are taken where they spell that very text.

Windows are one a text, or several of a text longer than the context. Nothing crosses a conversation: a
window holds tokens of one text of one conversation, and its first position has nothing before it.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import CorpusError
from scoremode.text.conversations.messages import Conversation
from scoremode.text.conversations.spans import span_of_tokens
from scoremode.text.conversations.template import ChatTemplate, Scored, Turn, turns
from scoremode.text.tokenizer import Tokenizer

__all__ = ["Cut", "Long", "Spoken", "Tally", "Tokens", "cut", "places", "tokens_of"]

# A text longer than the context: keep its first window, cut it into several, or leave it out.
Long = Literal["truncate", "split", "skip"]


@dataclass(frozen=True, eq=False)
class Tokens:
    """A text of a conversation.

    - `ids` int32 [n]: its tokens; `turn` int32 [n]: of each target the number of its turn in the
      conversation, -1 of what is no target, as the first never is.
    - `span` int8 [n]: of each target the part of its turn (`spans.SPANS`); None where nobody asks.
    """

    ids: NDArray[np.int32]
    turn: NDArray[np.int32]
    span: NDArray[np.int8] | None = None

    @property
    def counts(self) -> NDArray[np.bool_]:
        """bool [n]: whether each is a target."""
        return self.turn >= 0


@dataclass
class Tally:
    """Counts over all conversations of a text.

    - `turns`: that count, of which `apart` have a text of their own, `unended` end without a token that
      ends a turn, `unprompted` begin otherwise than the template prompts for one, and
      `without_calls` have tool calls that the template leaves out.
    - `respelled`: turns that are scored in the ids that their row has.
    - `unmarked`: turns without a mark by a template that marks others, none of whose tokens counts.

    Of all of these turns every token is a target or one of

    - `straddling`: holds characters of the model's and others, such as a prompt's last and a reply's
      first;
    - `outside`: of what the template marks as generated;
    - `behind`: the token that ends a turn;
    - `opening`: the first of its text, which nothing comes before.

    `prompted` tokens are marked as generated, and the template's prompt for a reply gives them.
    """

    turns: int = 0
    apart: int = 0
    unended: int = 0
    unprompted: int = 0
    without_calls: int = 0
    straddling: int = 0
    respelled: int = 0
    unmarked: int = 0
    outside: int = 0
    behind: int = 0
    opening: int = 0
    prompted: int = 0

    def add(self, other: "Tally") -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True, eq=False)
class Spoken:
    """The means to turn conversations into tokens.

    - `template`: None where there is none; `ends`: ids of tokens with which a model ends a turn.
    - `scored`: which targets count. `tally`: what is counted meanwhile.
    - `by_span`: whether the parts of turns are told apart.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    ends: frozenset[int]
    scored: Scored = "assistant"
    tally: Tally = field(default_factory=Tally)
    by_span: bool = False


def tokens_of(conversation: Conversation, spoken: Spoken) -> list[Tokens]:
    """The texts of a conversation, in the order of their last turns.

    Raises CorpusError, naming the conversation, for one without a target and all that `turns` raises.
    """
    found, shared = turns(conversation, spoken.template, spoken.scored), list[Tokens]()
    for number, turn in reversed(list(enumerate(turn for turn in found if turn.spans))):
        tokens = _tokens(conversation, number, turn, spoken)
        if shared and _begins(shared[-1], tokens):
            into = shared[-1].turn[: len(tokens.ids)]
            assert not (tokens.counts & (into >= 0)).any(), f"{conversation.where}: a target twice"
            into[tokens.counts] = number
            if tokens.span is not None:
                shared[-1].span[: len(tokens.ids)][tokens.counts] = tokens.span[tokens.counts]  # pyright: ignore[reportOptionalSubscript]
        else:
            shared.append(tokens)
    for turn in found:
        spoken.tally.turns += bool(turn.spans)
        if not turn.spans:
            spoken.tally.unmarked += 1
            _tokens(conversation, 0, turn, spoken)
    shared = [tokens for tokens in reversed(shared) if tokens.counts.any()]
    if not shared:
        unmarked = found and not any(turn.spans for turn in found)
        why = ": its chat template marks none of it as generated" if unmarked else ""
        raise CorpusError(f"{conversation.where}: no token of it is a target{why}")
    spoken.tally.apart += len(shared) - 1
    return shared


def _tokens(conversation: Conversation, number: int, turn: Turn, spoken: Spoken) -> Tokens:
    """The tokens of turn `number` with all before it, and none behind its last target."""
    ids, spans = spoken.tokenizer.encode_with_spans(turn.text)
    if conversation.text is not None:
        ids, spans = _with_sides(ids, spans, spoken.tokenizer)
    if spoken.scored == "all":
        # Nothing comes before the first.
        return Tokens(ids, np.where(np.arange(len(ids)) > 0, number, -1).astype(np.int32))
    is_target, end, tally = _targets(turn, ids, spans, spoken.ends)
    own = _as_generated(conversation, turn, ids[:end], spoken)
    if own is not None:
        tally = replace(tally, straddling=0, respelled=1)
        ids, begin = own
        end, is_target = len(ids), np.arange(len(ids)) >= begin
        if spoken.by_span:
            spans = _spelled(ids, begin, turn.spans[0][0], spoken.tokenizer)
    if is_target[:1].any():
        is_target[0], tally.opening = False, 1
    spoken.tally.add(tally)
    span = None
    if spoken.by_span and turn.spans:
        span = span_of_tokens(turn, spans[:end], conversation, spoken.template)
    return Tokens(ids[:end], np.where(is_target[:end], number, -1).astype(np.int32), span)


# What a token of a turn is that is no target.
_OUTSIDE, _TARGET, _SPLIT, _BEHIND = range(4)


def _targets(
    turn: Turn, ids: NDArray[np.int32], spans: NDArray[np.int64], ends: frozenset[int]
) -> tuple[NDArray[np.bool_], int, Tally]:
    """bool [n]: which tokens of a turn the model generated; where their text ends; and what all other
    tokens of the turn are.

    `spans` int64 [n, 2]: the characters of each token.
    """
    first, last = spans.T
    kind, tally = np.full(len(ids), _OUTSIDE), Tally()
    # What begins after the turn does, or reaches into it, and begins before it ends.
    whole = slice(np.searchsorted(last, turn.begin, "right"), np.searchsorted(first, turn.end))
    end, is_ended = int(whole.stop), False
    for begin, stop in turn.spans:
        some = slice(np.searchsorted(last, begin, "right"), np.searchsorted(first, stop))
        some = some if begin < stop else slice(some.stop, some.stop)
        is_split = (first[some] < begin) | (last[some] > stop)
        kind[some] = np.where(is_split, _SPLIT, _TARGET)
        # A template's marks may leave the token out that ends the turn.
        places = range(some.start, min(some.stop + 1, len(ids)))
        found = next((i for i in places if int(ids[i]) in ends), None)
        end, is_ended = int(some.stop), found is not None
        if found is not None:
            end = found + 1
            kind[found], kind[end : some.stop] = _TARGET, _BEHIND
    if is_ended:
        kind[end : whole.stop] = _BEHIND
    tally.outside, tally.straddling, tally.behind = (
        int((kind[whole] == of).sum()) for of in (_OUTSIDE, _SPLIT, _BEHIND)
    )
    for begin, stop in turn.marks or ():
        stop = min(stop, turn.begin)
        inside = np.searchsorted(last, stop, "right") - np.searchsorted(first, begin)
        tally.prompted += max(int(inside), 0)
    tally.without_calls = int(not turn.writes_calls)
    if turn.spans:
        tally.unended, tally.unprompted = int(not is_ended), int(not turn.as_prompted)
    return kind == _TARGET, end, tally


def _as_generated(
    conversation: Conversation, turn: Turn, ids: NDArray[np.int32], spoken: Spoken
) -> tuple[NDArray[np.int32], int] | None:
    """The ids of the last turn and all before it as the row has them, and where the turn begins; None
    where it has none that spell the text of `ids`."""
    own, tokenizer = conversation.generated_ids, spoken.tokenizer
    # What lies between two marks the model would have to have generated as well.
    if own is None or not turn.is_last or len(turn.spans) != 1:
        return None
    if not all(0 <= i < tokenizer.size for i in own):
        return None
    front, spans = tokenizer.encode_with_spans(turn.text[: turn.spans[0][0]])
    if conversation.text is not None:
        front, _ = _with_sides(front, spans, tokenizer)
        front = front[: len(front) - len(tokenizer.added[1])]
    whole = np.concatenate([front, np.array(own, np.int32)])
    spelled, said = (tokenizer.decode(i.tolist()) for i in (whole, ids))
    return (whole, len(front)) if spelled == said else None


def _spelled(
    ids: NDArray[np.int32], begin: int, at: int, tokenizer: Tokenizer
) -> NDArray[np.int64]:
    """int64 [n, 2]: the characters that each of `ids` spells, of which number `begin` spells from
    character `at` on; those before it, none."""
    texts = tokenizer.decoded_one_by_one(ids.tolist())
    ends = at + np.cumsum([0, *map(len, texts[begin:])])
    # Bytes of a character that the next ids complete are of that character.
    of = np.stack([ends[:-1], np.maximum(ends[1:], ends[:-1] + 1)], 1)
    return np.concatenate([np.zeros((begin, 2), np.int64), of])


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


def _begins(whole: Tokens, part: Tokens) -> bool:
    n = len(part.ids)
    return n <= len(whole.ids) and bool(np.array_equal(whole.ids[:n], part.ids))


@dataclass(frozen=True, eq=False)
class Cut:
    """All windows of conversations.

    - `tokens` int32 [N]: of all texts, one behind the other; `turn` int32 [N]: the number of each
      target's turn among all turns, -1 of what is no target.
    - `start`, `stop`, `first` int64 [W]: window `w` is `tokens[start[w]:stop[w]]`, and those of its
      targets count that lie from its position `first[w]` on.
    - `place` int32 [N]: how many targets of the same turn stand before each target; 0 for other tokens.
    - `span` int8 [N]: as in `Tokens`.
    - `conversation` int32 [W]: the place of each window's conversation among all that were read.
    - `long`, `lost`: conversations with a text longer than the context, and those of them of which no
      target is left.
    - `targets`: of all texts, in a window or not.
    """

    tokens: NDArray[np.int32]
    turn: NDArray[np.int32]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    first: NDArray[np.int64]
    place: NDArray[np.int32]
    conversation: NDArray[np.int32]
    long: int
    lost: int
    targets: int
    span: NDArray[np.int8] | None

    @cached_property
    def counts(self) -> NDArray[np.bool_]:
        """bool [N]: which tokens are targets."""
        return self.turn >= 0

    @cached_property
    def scored(self) -> NDArray[np.int32]:
        """int32 [S]: the turn of each target that a window scores."""
        spans = zip(self.start + self.first, self.stop, strict=True)
        found = np.concatenate([self.turn[begin:stop] for begin, stop in spans])
        return found[found >= 0]


@dataclass
class _Windows:
    """Windows while they are made; `at`: the place of the next token."""

    length: int
    rule: Long
    at: int = 0
    spans: list[tuple[int, int, int, int]] = field(default_factory=list)
    texts: list[Tokens] = field(default_factory=list)

    def add(self, text: Tokens, conversation: int) -> bool:
        """Adds the windows of a text; whether any holds a target."""
        n, stride = len(text.ids), max(self.length // 2, 1)
        if n > self.length and self.rule == "skip":
            return False
        starts = [0]
        if n > self.length and self.rule == "split":
            starts = list(range(0, n - self.length + stride, stride))
        before, added = 1, False
        for start in starts:
            stop = min(start + self.length, n)
            # The last window ends where the text does, with as much before it as the others have.
            start = max(0, stop - self.length)
            if text.counts[max(before, start + 1) : stop].any():
                first = max(before - start, 1)
                self.spans.append((self.at + start, self.at + stop, first, conversation))
                added = True
            before = stop
        if added:
            self.at += n
            self.texts.append(text)
        return added


def cut(conversations: Iterable[list[Tokens]], length: int, rule: Long) -> Cut:
    """The windows of at most `length` tokens of conversations, each given by its texts.

    With `split` a window begins half a context before its new targets, so that each has at least that
    much before it, or all there is. Raises CorpusError where no target is left.
    """
    windows, long, lost, targets, turns = _Windows(length, rule), 0, 0, 0, 0
    for place, texts in enumerate(conversations):
        targets += sum(int(text.counts.sum()) for text in texts)
        texts = [
            replace(t, turn=np.where(t.counts, t.turn + turns, -1).astype("i4")) for t in texts
        ]
        turns = max([turns, *(int(text.turn.max()) + 1 for text in texts)])
        long += any(len(text.ids) > length for text in texts)
        lost += not sum(windows.add(text, place) for text in texts)
    if not windows.spans:
        raise CorpusError(
            f"no target is left of {lost:,} conversations in windows of {length:,} tokens"
        )
    start, stop, first, conversation = np.array(windows.spans, np.int64).T.copy()
    spans = [text.span for text in windows.texts if text.span is not None]
    return Cut(
        np.concatenate([text.ids for text in windows.texts]),
        np.concatenate([text.turn for text in windows.texts]),
        start,
        stop,
        first,
        np.concatenate([places(text.turn) for text in windows.texts]),
        conversation.astype(np.int32),
        long,
        lost,
        targets,
        np.concatenate(spans) if spans else None,
    )


def places(turn: NDArray[np.int32]) -> NDArray[np.int32]:
    """int32 [n]: the place in its turn of each target of a text, 0 for other tokens.

    `turn` int32 [n]: as in `Tokens`. Two turns may have nothing between them, and one may hold tokens
    that are no targets.
    """
    targets = np.flatnonzero(turn >= 0)
    at = np.arange(len(targets))
    begins = np.diff(turn[targets], prepend=-1) != 0
    found = np.zeros(len(turn), np.int32)
    found[targets] = at - np.maximum.accumulate(np.where(begins, at, 0))
    return found

"""Requests as texts: what a task asks for, tokenized as lm-evaluation-harness tokenizes it.

A pair is a context and a continuation, whose log-likelihood after it is asked for; a whole text has no
context, and each of its tokens counts. Spaces at a context's end go to the continuation, the pair is
encoded whole and cut where the context's own tokens end, and special tokens are those that the
tokenizer adds to a text which does not begin with one already (0.4.13's `tok_encode`, `_encode_pair`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import CorpusError, ProtocolError, TokenizerError
from scoremode.lib.json import json_digest
from scoremode.text.corpus import Corpus
from scoremode.text.plan import Plan
from scoremode.text.protocol import Protocol, TextRule
from scoremode.text.requests import TokenRequest, plan_of_requests, rolling_requests
from scoremode.text.tokenizer import Tokenizer
from scoremode.text.wikitext import detokenized, page_words

__all__ = ["Asked", "PlannedAsked", "TextRequest", "asked", "asked_pages"]


@dataclass(frozen=True)
class TextRequest:
    """A log-likelihood that is asked for.

    - `task`, `question`, `place`: whose it is: the task's name, the number of its question, and the
      request's place among those of that question.
    - `context`: what stands before; None where the whole text counts, window by window.
    - `continuation`: the text whose log-likelihood it is.
    """

    task: str
    question: int
    place: int
    context: str | None
    continuation: str

    @property
    def words(self) -> str:
        """What names it to a reader."""
        return f"{self.task}, question {self.question}, request {self.place}"


@dataclass(frozen=True, eq=False)
class PlannedAsked:
    """The plan of R requests.

    - `window` int64 [some]: the windows of all requests, one behind the other; `begin` int64 [R + 1]:
      where each one's begin, and their end.
    - `shortened`: how many windows lost the first tokens of their context.
    - `requests`: what was asked for; `sizes` int64 [R, 2]: of pages the words and bytes that each one
      has, None of others.
    - `prefix`: the token before what nothing precedes; None where there is none.
    """

    plan: Plan
    window: NDArray[np.int64]
    begin: NDArray[np.int64]
    shortened: int
    requests: tuple[TextRequest, ...]
    sizes: NDArray[np.int64] | None
    prefix: int | None


@dataclass(frozen=True)
class Asked(Corpus):
    """Requests as a corpus, in an order of their own; `asked` makes it, and of pages `asked_pages`.

    `pages`: of each request the page that it is of; none of others.
    """

    requests: tuple[TextRequest, ...] = field(default=(), kw_only=True, repr=False)
    pages: tuple[str, ...] = field(default=(), kw_only=True, repr=False)

    @property
    def sizes(self) -> NDArray[np.int64] | None:
        """int64 [R, 2]: words and bytes of the pages; None of other requests."""
        if not self.pages:
            return None
        return np.array([(page_words(p), len(p.encode())) for p in self.pages], np.int64)

    @property
    def text_bytes(self) -> int:
        return sum(
            len((r.context or "").encode()) + len(r.continuation.encode()) for r in self.requests
        )

    def text(self, rule: TextRule) -> str:
        raise CorpusError(f"{self.name}: are requests, and no text")

    def documents(self) -> list[int]:
        """The number of each request's question among all tasks' questions."""
        known: dict[tuple[str, int], int] = {}
        return [known.setdefault((r.task, r.question), len(known)) for r in self.requests]

    def planned(self, protocol: Protocol, tokenizer: Tokenizer, prefix: int | None) -> PlannedAsked:
        """All requests as windows, under a `protocol` that is resolved.

        `prefix`: the token before an empty context and before a whole text, None where the model has
        neither a BOS nor an EOS. Raises TokenizerError where one is needed then, ProtocolError for a
        continuation that is too long for the model, CorpusError for an empty one.
        """
        encode = _encoder(tokenizer, prefix)
        length = protocol.context_length
        assert length is not None
        found: list[TokenRequest] = []
        begin = [0]
        for request, document in zip(self.requests, self.documents(), strict=True):
            if not request.context and prefix is None:
                raise TokenizerError(
                    f"{tokenizer.source}: {request.words}: has no context, and there is neither a BOS "
                    "nor an EOS token to stand before it"
                )
            found += _tokens(request, document, encode, prefix, length)
            # An empty whole text has no window.
            if (
                n := max((len(each.continuation) for each in found[begin[-1] :]), default=0)
            ) > length:
                raise ProtocolError(
                    f"{request.words}: its continuation has {n} tokens, and the model reads {length} "
                    "at a time"
                )
            begin.append(len(found))
        # Where a prefix is needed it is there: see above.
        made = plan_of_requests(found, protocol, -1 if prefix is None else prefix)
        for request, first in zip(self.requests, begin[:-1], strict=True):
            if request.context is not None and made.window[first] < 0:
                raise CorpusError(f"{request.words}: its continuation has no token")
        return PlannedAsked(
            made.plan,
            made.window,
            np.array(begin, np.int64),
            made.shortened,
            self.requests,
            self.sizes,
            prefix,
        )


def asked_pages(pages: Sequence[str]) -> Asked:
    """The corpus of WikiText's pages, each a whole text of the harness's task. Raises CorpusError for
    none."""
    if not pages:
        raise CorpusError("the text has no pages")
    texts = [TextRequest("wikitext", i, 0, None, detokenized(p)) for i, p in enumerate(pages)]
    return replace(asked(texts), pages=tuple(pages))


def asked(requests: Sequence[TextRequest]) -> Asked:
    """The corpus of `requests`, ordered by task, question and place. Raises CorpusError for none."""
    if not requests:
        raise CorpusError("the tasks ask for nothing")
    ordered = tuple(sorted(requests, key=lambda r: (r.task, r.question, r.place)))
    digest = json_digest(
        [[r.task, r.question, r.place, r.context, r.continuation] for r in ordered]
    )
    tasks = sorted({r.task for r in ordered})
    name = ", ".join(tasks[:3]) + (f" and {len(tasks) - 3} more tasks" if len(tasks) > 3 else "")
    return Asked(name, (), "rows", "lm-evaluation-harness", digest, requests=ordered)


def _encoder(tokenizer: Tokenizer, prefix: int | None) -> Callable[[str, bool], Sequence[int]]:
    """(text, is within another) → its ids. Special tokens are added to a text by itself, but not to one
    that begins with the prefix, as chat templates write it."""
    written = None if prefix is None else tokenizer.decode([prefix])

    @lru_cache(maxsize=1 << 12)
    def encode(text: str, alone: bool) -> tuple[int, ...]:
        adds = alone and not (written is not None and text.startswith(written))
        return tuple(tokenizer.encode(text, special_tokens=adds).tolist())

    return encode


def _tokens(
    request: TextRequest,
    document: int,
    encode: Callable[[str, bool], Sequence[int]],
    prefix: int | None,
    length: int,
) -> Iterator[TokenRequest]:
    """The windows of a request, one of a pair, in the order of the text."""
    context, continuation = request.context, request.continuation
    if context is None:
        assert prefix is not None
        yield from rolling_requests(encode(continuation, True), prefix, length, document)
    elif not context:
        yield TokenRequest((), encode(continuation, False), document)
    else:
        bare = context.rstrip()
        whole = encode(bare + context[len(bare) :] + continuation, True)
        before = encode(bare, True)
        yield TokenRequest(whole[: len(before)], whole[len(before) :], document)

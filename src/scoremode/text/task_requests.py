"""Requests for log-likelihoods, as lm-evaluation-harness 0.4.13 makes them: texts, tokens, and a plan.

A pair is a context and a continuation, whose log-likelihood after the context is wanted; a whole text
has no context, and each of its tokens counts. Spaces at a context's end go to the continuation, the
pair is encoded whole and cut where the context's own tokens end, and special tokens are those that the
tokenizer adds to a text which does not begin with one already (`tok_encode`, `_encode_pair`). What an
empty context becomes, how a whole text is cut and what is too long follow `lm_eval/api/model.py`,
`lm_eval/utils.py` and the hf backend.

In the plan each request is a window: its tokens are the context and the continuation, and those of the
continuation are its targets. Windows lie in the lexicographic order of their token ids, so that those
which share a beginning are neighbors, and equal requests are one window: the same requests make the
same plan, whichever order they come in.

The harness's task `wikitext` (version 2) asks for pages: an article is its heading and all lines up to
the next heading, as the data set EleutherAI/wikitext_document_level cuts WikiText's raw file. A model
reads the page detokenized, without the spaces that WikiText's tokenizer put in; words and bytes are
counted in the page as it is.
"""

import re
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
from scoremode.text.tokenizer import Tokenizer

__all__ = [
    "TASKS",
    "PlannedCorpus",
    "PlannedRequests",
    "RequestCorpus",
    "TextRequest",
    "TokenRequest",
    "detokenized",
    "page_corpus",
    "page_words",
    "plan_of_requests",
    "request_corpus",
    "rolling_requests",
]

TASKS = Protocol(
    "tasks",
    text="requests",
    bos="never",
    context_length=None,
    scored="continuation",
    tail="keep",
    short_text="one-window",
)


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
        """Its name for a reader."""
        return f"{self.task}, question {self.question}, request {self.place}"


@dataclass(frozen=True, eq=False)
class PlannedCorpus:
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
class RequestCorpus(Corpus):
    """Requests as a corpus, in an order of their own; `asked` makes it, and of pages `page_corpus`.

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

    def planned(
        self, protocol: Protocol, tokenizer: Tokenizer, prefix: int | None
    ) -> PlannedCorpus:
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
        return PlannedCorpus(
            made.plan,
            made.window,
            np.array(begin, np.int64),
            made.shortened,
            self.requests,
            self.sizes,
            prefix,
        )


def page_corpus(pages: Sequence[str]) -> RequestCorpus:
    """The corpus of WikiText's pages, each a whole text of the harness's task. Raises CorpusError for
    none."""
    if not pages:
        raise CorpusError("the text has no pages")
    texts = [TextRequest("wikitext", i, 0, None, detokenized(p)) for i, p in enumerate(pages)]
    return replace(request_corpus(texts), pages=tuple(pages))


def request_corpus(requests: Sequence[TextRequest]) -> RequestCorpus:
    """The corpus of `requests`, ordered by task, question and place. Raises CorpusError for none."""
    if not requests:
        raise CorpusError("the tasks ask for nothing")
    ordered = tuple(sorted(requests, key=lambda r: (r.task, r.question, r.place)))
    digest = json_digest(
        [[r.task, r.question, r.place, r.context, r.continuation] for r in ordered]
    )
    tasks = sorted({r.task for r in ordered})
    name = ", ".join(tasks[:3]) + (f" and {len(tasks) - 3} more tasks" if len(tasks) > 3 else "")
    return RequestCorpus(name, (), "rows", "lm-evaluation-harness", digest, requests=ordered)


@dataclass(frozen=True)
class TokenRequest:
    """Token ids whose log-likelihood is wanted, `continuation`, and those before them, `context`.

    `document`: the number of the question that it is of, by which intervals are drawn.
    """

    context: Sequence[int]
    continuation: Sequence[int]
    document: int

    def behind(self, prefix: int) -> "TokenRequest":
        """This request with something before its continuation: of an empty context the token `prefix`,
        or the continuation's first one where it is that already, which is no target then."""
        if len(self.context) or not len(self.continuation):
            return self
        if self.continuation[0] == prefix:
            return TokenRequest(self.continuation[:1], self.continuation[1:], self.document)
        return TokenRequest([prefix], self.continuation, self.document)


@dataclass(frozen=True, eq=False)
class PlannedRequests:
    """The plan of R requests.

    - `window` int64 [R]: the window of each request, -1 for one without a target.
    - `shortened`: the number of requests whose context lost its first tokens.
    """

    plan: Plan
    window: NDArray[np.int64]
    shortened: int


def rolling_requests(
    tokens: Sequence[int], prefix: int, length: int, document: int
) -> list[TokenRequest]:
    """Requests that have each of `tokens` as a target once, of at most `length` tokens to be read each:
    the first ones after `prefix`, others after one token of the text, and those of a last, short one
    after as many as there is room for. The log-likelihood of the text is their sum."""
    found = []
    for begin in range(0, len(tokens), length):
        end = min(begin + length, len(tokens))
        before = tokens[end - length - 1 : begin] if begin else [prefix]
        found.append(TokenRequest(before, tokens[begin:end], document))
    return found


def plan_of_requests(
    requests: Sequence[TokenRequest], protocol: Protocol, prefix: int
) -> PlannedRequests:
    """The plan of `requests` under `protocol`, resolved, whose context length L is the most tokens that
    the model reads at a time: a request keeps its last L + 1. `prefix` stands before a continuation
    that nothing else does.

    A window that several documents ask for counts as the first one's, by number. Raises ProtocolError
    for a request that no model of that length can score, CorpusError where nothing is to be scored.
    """
    length = protocol.context_length
    assert length is not None and protocol.is_of_requests
    keys: list[tuple[bytes, int]] = []
    document: dict[tuple[bytes, int], int] = {}
    shortened = 0
    for i, given in enumerate(requests):
        request = given.behind(prefix)
        n = len(request.continuation)
        if n > length:
            raise ProtocolError(
                f"request {i}: its continuation has {n} tokens, and the model reads {length} at a time"
            )
        # Big-endian, since bytes sort then as the ids do.
        ids = np.array([*request.context, *request.continuation], ">i4")
        shortened += len(ids) > length + 1 and n > 0
        kept = ids[-(length + 1) :]
        key = (kept.tobytes(), len(kept) - n) if n else (b"", 0)
        keys.append(key)
        if n:
            document[key] = min(document.get(key, request.document), request.document)
    if not document:
        raise CorpusError(f"no token is to be scored of {len(requests)} requests")
    order = sorted(document)
    place = {key: w for w, key in enumerate(order)}
    lengths = np.array([len(ids) // 4 for ids, _ in order], np.int64)
    stop, first = lengths.cumsum(), np.array([first for _, first in order], np.int64)
    # Engines use this for rows of windows that are padded to one length.
    counted = np.arange(int(stop[-1])) - np.repeat(stop - lengths, lengths) >= first.repeat(lengths)
    plan = Plan(
        protocol,
        np.frombuffer(b"".join(ids for ids, _ in order), ">i4").astype(np.int32),
        stop - lengths,
        stop,
        first,
        counted=counted,
        conversation=np.array([document[key] for key in order], np.int32),
    )
    return PlannedRequests(plan, np.array([place.get(k, -1) for k in keys], np.int64), shortened)


def detokenized(page: str) -> str:
    """The text that the harness has a model read of a page."""
    for pattern, new in _REPLACED:
        page = pattern.sub(new, page)
    return page


def page_words(page: str) -> int:
    """The number of words of a page: of what stands between runs of whitespace, with the empty strings
    at both ends that the harness counts as well."""
    return len(re.split(r"\s+", page))


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


def _literally(*pairs: tuple[str, str]) -> list[tuple[str, str]]:
    return [(re.escape(old), new) for old, new in pairs]


# Patterns and what stands in their place, one after the other: each sees what the ones before it left.
_REPLACED = [
    (re.compile(pattern), new)
    for pattern, new in (
        *_literally(("s '", "s'")),
        # The slashes are the harness's own, and so hardly a text has it.
        (r"/' [0-9]/", "/'[0-9]/"),
        *_literally((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", ".")),
        *_literally(*((f" {mark} ", f"{mark} ") for mark in ":;.!?,")),
        (r"\(\s*([^)]*?)\s*\)", r"(\1)"),
        (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
        (r"\{\s*([^}]*?)\s*\}", r"{\1}"),
        (r'"\s*([^"]*?)\s*"', r'"\1"'),
        (r"'\s*([^']*?)\s*'", r"'\1'"),
        *_literally(("= = = =", "===="), ("= = =", "==="), ("= =", "==")),
        *_literally((" ° ", "°"), (" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "), (" 's", "'s")),
    )
]

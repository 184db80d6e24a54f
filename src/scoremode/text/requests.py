"""Requests for log-likelihoods, each a context and a continuation as token ids, as one plan.

A request is a window: its tokens are the context and the continuation, and those of the continuation
are its targets. Windows lie in the lexicographic order of their token ids, so that those which share a
beginning are neighbours, and equal requests are one window: the same requests make the same plan,
whichever order they come in.

What an empty context becomes, how a whole text is cut and what is too long is as lm-evaluation-harness
0.4.13 has it (`lm_eval/api/model.py`, `lm_eval/utils.py`, its hf backend).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import CorpusError, ProtocolError
from scoremode.text.plan import Plan
from scoremode.text.protocol import Protocol

__all__ = ["TASKS", "PlannedRequests", "TokenRequest", "plan_of_requests", "rolling_requests"]

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
    # What engines take rows of windows by that are filled up to one length.
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

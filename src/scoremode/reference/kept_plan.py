"""The plan of a kept run, from the token ids that it keeps and its own Scores.

A text's windows are cut again by the protocol. Those of conversations, of requests and of files apart
follow from no protocol alone: the Scores tell each window's place, since a target at position `t` lies
`t` behind its window's start, and the last one of a window ends it. Groups of targets are the Scores'
too.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.results.folders.tables import LABEL
from scoremode.results.scores import Scores
from scoremode.results.statistics.blocks import CONVERSATION
from scoremode.text.plan import Labels, Plan, make_plan
from scoremode.text.protocol import Protocol

__all__ = ["kept_plan"]


def kept_plan(
    tokens: NDArray[np.int32],
    protocol: Protocol,
    record: Mapping[str, Any],
    columns: Callable[[], tuple[Scores, Mapping[str, np.ndarray]]],
) -> Plan:
    """The plan of `tokens` (int32 [N]) that a run's record describes, which nothing vouches for yet.

    - `columns`: gives what `read_columns` does, where it is asked.

    Raises CorpusError, ProtocolError for tokens that can't be cut as the protocol says.
    """
    bos = {name: record["plan"][name] for name in ("stream_bos", "window_bos")}
    corpus = record["corpus"]
    is_apart = "conversations" in corpus or corpus.get("joined") == "apart"
    if is_apart or protocol.is_of_requests:
        plan = _of_scores(tokens, protocol, bos, *columns())
    else:
        plan = make_plan(tokens, protocol, **bos)
    if "group_by" not in corpus:
        return plan
    scores, extras = columns()
    return replace(plan, labels=_labels(len(tokens), scores, extras[LABEL]))


def _of_scores(
    tokens: NDArray[np.int32],
    protocol: Protocol,
    bos: Mapping[str, int | None],
    scores: Scores,
    extras: Mapping[str, np.ndarray],
) -> Plan:
    _, begin = np.unique(scores.window, return_index=True)
    end = np.append(begin[1:], len(scores)) - 1
    counted = turn_place = None
    if protocol.text == "conversations" or protocol.is_of_requests:
        counted = np.zeros(len(tokens), bool)
        counted[scores.index] = True
    if "turn_place" in extras:
        turn_place = np.zeros(len(tokens), np.int32)
        turn_place[scores.index] = extras["turn_place"]
    weight, conversation = extras.get("weight"), extras.get(CONVERSATION)
    return Plan(
        protocol,
        tokens,
        scores.index[begin].astype(np.int64) - scores.position[begin],
        scores.index[end].astype(np.int64) + 1,
        scores.position[begin].astype(np.int64),
        bos["window_bos"],
        bos["stream_bos"],
        None if weight is None else weight[begin],
        counted=counted,
        conversation=None if conversation is None else conversation[begin].astype(np.int32),
        turn_place=turn_place,
    )


def _labels(size: int, scores: Scores, labels: NDArray[np.object_]) -> Labels:
    """The groups of all tokens; those of which none is a target have the first one's."""
    texts = labels.tolist()
    names = sorted(set(texts))
    place = {name: i for i, name in enumerate(names)}
    of = np.full(size, place[texts[0]], np.int32)
    of[scores.index] = [place[text] for text in texts]
    return Labels(tuple(names), of)

"""Plans of requests with much in common: a few shots, questions behind them, choices behind each."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scoremode.text.plan import Plan
from scoremode.text.task_requests import TASKS, TokenRequest, plan_of_requests

PREFIX = 1


def plan_of(requests: Sequence[TokenRequest], length: int = 60) -> Plan:
    return plan_of_requests(
        requests, replace(TASKS, context_length=length).resolve(None), PREFIX
    ).plan


def shared_plan(vocabulary: int, questions: int = 6, seed: int = 0, shots: int = 14) -> Plan:
    """Questions behind the same shots of random tokens, in two subjects, with choices of several tokens
    or of one; beside them an empty context, a window of one input, and one that others begin with."""
    rng = np.random.default_rng(seed)

    def drawn(count: int) -> list[int]:
        return rng.integers(3, vocabulary, count).tolist()

    requests = []
    for subject in range(2):
        before = drawn(shots)
        for number in range(questions):
            context = before + drawn(int(rng.integers(2, 9)))
            document = subject * questions + number
            sizes = [1] * 4 if number % 2 else rng.integers(1, 7, 4).tolist()
            requests += [TokenRequest(context, drawn(n), document) for n in sizes]
        # What a model has read of another request, and the same request twice.
        requests += [TokenRequest(before, drawn(2), 90 + subject), requests[-1]]
    requests += [
        TokenRequest([], drawn(3), 98),
        TokenRequest([5], [6], 99),
        TokenRequest([5], [7], 99),
    ]
    return plan_of(requests)

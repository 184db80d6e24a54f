"""The http engine: a plan's windows to a server that runs already, and their scores back.

The server is asked for each window's own tokens, by their ids. That a row of its answer is of the token
that we think it is of is shown before anything is scored (`prove`): the ids come back, and what the
server generates behind a part of the window is what its answer says of the next token.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.checkpoint.tokenizer import checkpoint_tokenizer
from scoremode.engines.base import Extras, Progress, Schedule, Work
from scoremode.engines.http.client import ServerError
from scoremode.engines.http.options import HttpOptions, ServedModel
from scoremode.engines.http.servers import Answer
from scoremode.errors import EngineError, InvalidMeasurement
from scoremode.results.scores import Scores, expected
from scoremode.text.plan import Plan, Window

# Window tokens of a pass: seconds of a server's work, which a killed run loses.
_PASS_TOKENS = 32_768
# Of a base's micro-batch.
_BATCH_TOKENS = 4_096
# Windows in which to look for places that show the alignment; how many places; and how far a generated
# token's log-probability may be from the prompt's: kernels of a prefill and of a decode step round
# apart, and a place beside it says another token.
_TRIED, _SHOWN, _NEAR = 8, 3, 0.25
# Of the text, whose tokens by the server are compared with ours.
_COMPARED = 512


class HttpEngine:
    """A served model, ready to score windows of `plan`.

    Raises EngineError for a server that can't, and InvalidMeasurement for one whose answers aren't of
    the tokens that they seem to be of.
    """

    def __init__(
        self,
        served: ServedModel,
        options: HttpOptions,
        plan: Plan,
        vocabulary: int | None,
        notify: Callable[[str], None],
    ):
        begin = time.perf_counter()
        self._served, self._options, self._server = served, options, served.server
        entries = served.text_config["vocab_size"]
        if vocabulary is not None and vocabulary < entries:
            raise EngineError(
                f"--vocabulary tokenizer: {served.name}: a server's softmax runs over all of its "
                f"{entries:,} entries, not over {vocabulary:,}"
            )
        self.vocabulary: int = entries
        self._pool = ThreadPoolExecutor(max_workers=options.concurrency)
        longest, most = int(plan.lengths.max()), self._server.longest
        if most is not None and longest > most:
            error = EngineError(
                f"{served.name}: takes windows of {most:,} tokens (one less than its context, since it "
                f"generates one), and the longest has {longest:,}: give --context-length {most}, or "
                "start it with a longer context"
            )
            error.instead = {"--context-length": str(most)}
            raise error
        self._probed = self._compare_tokens(plan, notify) | prove(self._score, self._next, plan)
        self._tokens = 0
        self._seconds = {"load": time.perf_counter() - begin, "score": 0.0}

    def schedule(self, plan: Plan) -> Schedule:
        """Passes and a base's micro-batches of fixed sizes; how many requests are under way is no part
        of it."""
        if plan.conversation is not None:
            most = len(plan)
            return Schedule(
                most, most, pass_tokens=_PASS_TOKENS, batch_tokens=_BATCH_TOKENS, pads=True
            )
        longest = int(plan.lengths.max())
        batch = max(1, _BATCH_TOKENS // longest)
        return Schedule(max(1, _PASS_TOKENS // (longest * batch)) * batch, batch)

    def score(
        self,
        plan: Plan,
        schedule: Schedule,
        first_pass: int = 0,
        progress: Progress | None = None,
        extras: Extras | None = None,
    ) -> Iterator[Scores]:
        for work in Work.passes(plan, schedule, first_pass, progress, extras):
            begin = time.perf_counter()
            asked = self._asked(work)
            base = None if work.extras.reference is None else _Base(work, self._options)
            answers = self._answers(work, asked)
            columns = {} if base is None else base.bounds(answers)
            yield _to_scores(plan, work.windows, answers, columns)
            self._tokens += work.tokens
            self._seconds["score"] += time.perf_counter() - begin

    def _asked(self, work: Work) -> dict[Future[Answer], int]:
        """Has all windows of a pass asked for."""
        windows = {w: work.plan[w] for w in work.windows}
        return {self._pool.submit(self._score_window, window): w for w, window in windows.items()}

    def _answers(self, work: Work, asked: dict[Future[Answer], int]) -> list[Answer]:
        """Those of the windows of a pass, in order, of the scored places alone."""
        try:
            for done in as_completed(asked):
                done.result()
                work.progress(float(work.plan.lengths[asked[done]]))
        except ServerError as error:
            self.close()
            raise ServerError(
                f"{error}: the passes before are kept, and --resume goes on"
            ) from None
        except BaseException:
            self.close()
            raise
        found: dict[int, Future[Answer]] = {w: future for future, w in asked.items()}
        return [found[w].result() for w in work.windows]

    def _score_window(self, window: Window) -> Answer:
        rows = window.scored - 1
        answer = self._score(tokens_of(window), self._options.top)
        return Answer(answer.logprob[rows], answer.ids[rows], answer.logprobs[rows])

    def _score(self, tokens: list[int], top: int = 1) -> Answer:
        return self._server.score(tokens, top)

    def _next(self, tokens: list[int]) -> dict[int, float]:
        return self._server.next(tokens, 1)

    def _compare_tokens(self, plan: Plan, notify: Callable[[str], None]) -> dict[str, Any]:
        """Holds the tokenizer that was given against the server's. Raises EngineError where they
        differ."""
        tokenizer = checkpoint_tokenizer(self._served.tokenizer)
        text = tokenizer.decode(plan.tokens[:_COMPARED].tolist())
        theirs = self._server.tokenized(text, special=False)
        if theirs is None:
            notify(
                f"{self._served.name}: has no /tokenize, so its tokenizer isn't compared with ours"
            )
            return {"tokenizer": "not compared: no /tokenize", "adds": None}
        ours = tokenizer.encode(text, special_tokens=False).tolist()
        if ours != theirs:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
                      min(len(ours), len(theirs)))  # fmt: skip
            raise EngineError(
                f"{self._served.name}: its tokenizer is another than {tokenizer.source}: token {at} "
                f"of the text is {theirs[at : at + 1]} there and {ours[at : at + 1]} here: give "
                "--tokenizer"
            )
        whole = self._server.tokenized(text, special=True) or []
        return {
            "tokenizer": f"the same {len(ours)} tokens by /tokenize",
            # Of texts: ids are taken as they are.
            "adds": len(whole) - len(theirs),
        }

    def head_tensors(self) -> Any:
        raise EngineError(f"{self._served.name}: a server keeps its head: capture the base itself")

    def identity(self) -> dict[str, Any]:
        server = self._server
        name = " ".join(word for word in (server.kind, server.version) if word)
        return {
            "engine": "http",
            "server": server.kind,
            "version": server.version,
            "model": server.model,
            "arithmetic": "the server's",
            "attention": "the server's",
            "dtype": "the server's",
            "vocabulary": self.vocabulary,
            "top": self._options.top,
            "device": {"type": "server", "name": f"{name} at {self._served.host}", "threads": None},
        }

    def describe(self) -> dict[str, Any]:
        return {
            **self.identity(),
            "probed": self._probed,
            "unused_tensors": [],
            "tokens": self._tokens,
            "seconds": {k: round(v, 3) for k, v in self._seconds.items()},
            "peak_bytes": 0,
        }

    def close(self) -> None:
        self._server.client.close()
        self._pool.shutdown(cancel_futures=True)


def tokens_of(window: Window) -> list[int]:
    """All of a window's ids."""
    return [*window.inputs.tolist(), int(window.targets[-1])]


def prove(
    score: Callable[[list[int]], Answer],
    generate: Callable[[list[int]], dict[int, float]],
    plan: Plan,
) -> dict[str, Any]:
    """What a server gives, and at which places that was shown to be of the token it seems to be of.

    A place shows it whose likeliest id is another than those of the places beside it: behind the tokens
    before it, the server must generate with that very id as the likeliest, at about the same
    log-probability. Raises InvalidMeasurement where it doesn't; EngineError where none of the first
    windows has such a place.
    """
    for w in range(min(_TRIED, len(plan))):
        tokens = tokens_of(plan[w])
        answer = score(tokens)
        rows, top1 = np.arange(len(answer.ids)), answer.top1
        ids, logprobs = answer.ids[rows, top1], answer.logprobs[rows, top1]
        places = telling_places(ids, logprobs)
        for i in places:
            found = generate(tokens[: i + 1])
            best = max(found, key=lambda token: found[token])
            if best != ids[i] or not abs(found[best] - logprobs[i]) <= _NEAR:
                raise InvalidMeasurement(
                    f"behind the first {i + 1} tokens of window {w} the server finds token {best} "
                    f"likeliest, with {found[best]:.4f}, and its answer for the whole window has token "
                    f"{ids[i]} there, with {logprobs[i]:.4f}: its rows are not of the tokens they seem "
                    "of"
                )
        if places:
            return {
                "gives": "every target exactly, and the likeliest ids",
                "aligned": f"at {len(places)} places of window {w}, by tokens generated there",
            }
    raise EngineError(
        "the server finds the same token likeliest everywhere in the first windows, so that nothing "
        "shows which token its log-probabilities are of"
    )


def telling_places(ids: NDArray[np.int32], logprobs: NDArray[np.float64]) -> list[int]:
    """The surest rows whose likeliest id is another than those before and behind."""
    tells = np.ones(len(ids), bool)
    tells[1:] &= ids[1:] != ids[:-1]
    tells[:-1] &= ids[1:] != ids[:-1]
    rows = np.flatnonzero(tells)
    return rows[np.argsort(-logprobs[rows], kind="stable")][:_SHOWN].tolist()


class _Base:
    """A base's predictions of the targets of a pass, which begin to be computed at once."""

    def __init__(self, work: Work, options: HttpOptions):
        # A run without a base needs no torch.
        from scoremode.engines.torch.device import choose_device

        reference, chosen = work.extras.reference, options.base
        assert reference is not None
        if reference.extra_sums is not None:
            raise EngineError(
                "a llama.cpp file has a base's log-probabilities in 16 bits; bounds need them whole: "
                "give the base itself, or a reference of it"
            )
        self._work, self._reference = work, reference
        self._device = choose_device(chosen.device, chosen.max_memory, chosen.memory_share).torch
        reference.expect(work.spans, self._device)

    def bounds(self, answers: list[Answer]) -> dict[str, NDArray[Any]]:
        """The columns of Bounds, of the model's answers to the windows of the pass."""
        import torch

        from scoremode.head.bounds import bound_rows
        from scoremode.head.project import tile_of

        work, device, found = self._work, self._device, []
        targets = torch.from_numpy(expected(work.plan, work.windows)["target"]).long()
        first, at = work.spans[0][0], 0
        for span, batch in zip(work.spans, work.batches, strict=True):
            ids, logprobs = _together(answers[at : at + len(batch)])
            at += len(batch)
            part = bound_rows(
                targets[span[0] - first : span[1] - first].to(device),
                self._reference.vocabulary,
                self._reference.logits([span], device, tile_of(device)),
                torch.from_numpy(ids).long().to(device),
                torch.from_numpy(logprobs).to(device),
            )
            found.append(part.columns())
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def _together(answers: list[Answer]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The ids and log-probabilities of several answers, [N, K] each, as wide as the widest."""
    width = max(answer.ids.shape[1] for answer in answers)
    filled = [[(0, 0), (0, width - answer.ids.shape[1])] for answer in answers]
    pairs = list(zip(answers, filled, strict=True))
    ids = [np.pad(answer.ids, pad, constant_values=-1) for answer, pad in pairs]
    logprobs = [np.pad(a.logprobs, pad, constant_values=-np.inf) for a, pad in pairs]
    return np.concatenate(ids), np.concatenate(logprobs)


def _to_scores(
    plan: Plan, windows: range, answers: list[Answer], bounds: dict[str, NDArray[Any]]
) -> Scores:
    own: dict[str, list[NDArray[Any]]] = {"logprob": [], "top1": [], "top1_logprob": []}
    for answer in answers:
        rows, place = np.arange(len(answer.ids)), answer.top1
        own["logprob"].append(answer.logprob)
        own["top1"].append(answer.ids[rows, place])
        own["top1_logprob"].append(answer.logprobs[rows, place])
    columns = {name: np.concatenate(parts) for name, parts in own.items()}
    return Scores.from_columns(expected(plan, windows) | columns | bounds)

"""Requests and answers between the process that asks and the workers that score: names, not code; and a
scoring engine's prompts and answers, each held against the other.

A request carries `PoolingParams.extra_kwargs["scoremode"]`, a dictionary of the fields of
`ScoreRequest` and `Kind` that are not as they are by default; `targets` as bytes, little-endian int32.
The answer is one float32 row a scored token, with the columns of its kind. Ids are exact in float32
below 2^24.

Which reference is compared with, and which file states are kept in, is told to the workers apart
(`workers/worker.py`): in a request, anybody who may ask a server could name any.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import EngineError, InvalidMeasurement
from scoremode.results.scores import DTYPES, Comparison

if TYPE_CHECKING:
    from scoremode.reference.base import OnDisk

KEY = "scoremode"
COLUMNS = ("position", "target", "logprob", "entropy", "top1", "top1_logprob")
# Columns of a comparison with a reference, as results.scores.Comparison names them.
COMPARED = ("base_logprob", "base_top1", "base_top1_logprob", "kld", "kld_reverse", "tv")
DRAFT = ("tv_draft",)
FULL = ("jsd", "base_entropy", "model_entropy", "topk_sets", "topk_order")
_TEST_COLUMNS = ("gathered_logprob", "gathered_entropy", "gathered_top1")
MAX_EXACT_ID = 2**24
Ids = Sequence[int] | NDArray[np.integer]
# Columns that are not float32 here; those of a comparison have its dtypes, too.
_TYPED = ("position", "target", "top1", *COMPARED, *DRAFT, *FULL)


@dataclass(frozen=True)
class Kind:
    """Columns wanted of each scored token. Requests of one kind are scored together.

    - `vocabulary`: how many entries the softmax runs over, all if None.
    - `entropy`: without it its column is NaN.
    - `compared`: with the reference, whose extra sums have the columns `extra`; `full`: with what costs
      a second pass over the logits; `draft`: with the total variation at that temperature.
    - `kept`: the states go into the file.
    - `self_test`: with what the gathered logits say.
    """

    vocabulary: int | None = None
    entropy: bool = True
    compared: bool = False
    extra: tuple[str, ...] = ()
    full: bool = False
    draft: float | None = None
    kept: bool = False
    self_test: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the numbers in each row of the answer."""
        compared = COMPARED + DRAFT * (self.draft is not None) + self.extra + FULL * self.full
        return COLUMNS + compared * self.compared + _TEST_COLUMNS * self.self_test


@dataclass(frozen=True, eq=False)
class ScoreRequest:
    """A request to score one prompt.

    - `targets` int32, one a prompt token: what to score after it; None: the prompt's own.
    - `first`: the first prompt token to score after. `chosen` int32: those of them that are, in order;
      None for all from there on.
    - `row`, `place`: the rows of the reference and of the file that belong to the first scored token;
      those of the others follow.
    - `index`: the number by which a worker that answers later names it.
    """

    targets: np.ndarray | None = None
    first: int = 0
    row: int = 0
    place: int = 0
    kind: Kind = field(default_factory=Kind)
    chosen: np.ndarray | None = None
    index: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt of a window that is replayed in decode steps: those before the one that
        is scored after first, or that one where it is the window's first."""
        first = self.first if self.chosen is None else int(self.chosen[0])
        return max(1, first)

    def row_of(self, place: int) -> int | None:
        """The number of the token `place` among those that are scored after; None where it is not."""
        if self.chosen is None:
            return place - self.first if place >= self.first else None
        at = int(np.searchsorted(self.chosen, place))
        return at if at < len(self.chosen) and self.chosen[at] == place else None

    def to_extra(self) -> dict[str, Any]:
        """The request as `extra_kwargs` carry it."""
        value: dict[str, Any] = {
            name: number
            for name in ("first", "row", "place", "index")
            if (number := int(getattr(self, name)))
        }
        if self.targets is not None:
            value["targets"] = np.ascontiguousarray(self.targets, dtype="<i4").tobytes()
        if self.chosen is not None:
            value["chosen"] = np.ascontiguousarray(self.chosen, dtype="<i4").tobytes()
        usual = asdict(Kind())
        value |= {k: v for k, v in asdict(self.kind).items() if v != usual[k]}
        return {KEY: value}

    @classmethod
    def from_extra(cls, extra: dict[str, Any] | None) -> "ScoreRequest":
        value = dict((extra or {}).get(KEY, {}))
        targets, chosen = (
            None if (data := value.pop(name, None)) is None else np.frombuffer(data, "<i4")
            for name in ("targets", "chosen")
        )
        own = {name: value.pop(name, 0) for name in ("first", "row", "place", "index")}
        # On its way a tuple becomes a list.
        value["extra"] = tuple(value.get("extra", ()))
        kind = Kind(**value)
        return cls(targets, **own, kind=kind, chosen=chosen)


@dataclass(frozen=True, eq=False)
class Against:
    """`reference`: what each prediction is compared with, its vocabulary that of the softmax.

    - `rows`: of each prompt, the reference's row of its first scored token; the others follow.
    - `full`, `draft`: as `Kind` has them.
    """

    reference: "OnDisk"
    rows: Sequence[int]
    full: bool = False
    draft: float | None = None


@dataclass(frozen=True, eq=False)
class Keep:
    """`path`: a file for states [rows, width] of `dtype`, that `create_states` has made.

    - `places`: of each prompt, the row for its first scored token; the others follow. Together the
      prompts fill the file.
    """

    path: Path
    rows: int
    width: int
    dtype: str
    places: Sequence[int]


@dataclass(frozen=True, eq=False)
class Prompt:
    """One checked prompt: `ids` int32 [n], `targets` int32 [n] or None, `first` scored token, and its
    rows elsewhere as `Against` and `Keep` have them; `chosen` int32: the tokens that are scored after,
    None for all from the first on."""

    ids: NDArray[np.int32]
    targets: NDArray[np.int32] | None
    first: int
    row: int = 0
    place: int = 0
    chosen: NDArray[np.int32] | None = None

    @property
    def expected(self) -> NDArray[np.int32]:
        """The targets to be scored: explicit ones, or the prompt's own next tokens."""
        following = self.ids[1:] if self.targets is None else self.targets
        return following[self.first :] if self.chosen is None else following[self.chosen]

    @property
    def whole(self) -> NDArray[np.int32]:
        """The ids whose next tokens are the prompt's targets, with the last of these.

        Raises EngineError for targets that do not follow in the prompt.
        """
        if self.targets is None:
            return self.ids
        if not np.array_equal(self.targets[:-1], self.ids[1:]):
            raise EngineError(
                "vLLM's generating runner scores only what follows in the prompt, no other targets"
            )
        return np.append(self.ids, self.targets[-1:])

    @property
    def positions(self) -> NDArray[np.integer]:
        """The positions of `expected`: 1 for what follows the prompt's first token."""
        if self.chosen is not None:
            return self.chosen + 1
        return np.arange(self.first + 1, self.first + 1 + len(self.expected))


@dataclass(frozen=True, eq=False)
class PromptScores:
    """One prompt's scores, a row a scored token, in order. N is the number of scored tokens.

    - `position` int32 [N]: the scored token's place, 1 for what follows the prompt's first token.
    - `target` int32 [N]: its id. `logprob` float32 [N]: its natural-log probability.
    - `entropy` float32 [N]: of the whole distribution, in nats; NaN on vLLM's own path.
    - `top1` int32 [N], `top1_logprob` float32 [N]: the likeliest id and its log-probability.
    - `against`: the same beside a reference, values of float32; None where none was asked for.
    """

    position: NDArray[np.int32]
    target: NDArray[np.int32]
    logprob: NDArray[np.float32]
    entropy: NDArray[np.float32]
    top1: NDArray[np.int32]
    top1_logprob: NDArray[np.float32]
    against: Comparison | None = None

    def __len__(self) -> int:
        return len(self.logprob)


def scores_of(rows: NDArray[Any], prompt: Prompt, kind: Kind) -> PromptScores:
    """Rows [N, columns of `kind`] of a prompt. Raises InvalidMeasurement unless they answer each target
    once, in order."""
    targets = prompt.expected
    if rows.shape != (len(targets), len(kind.columns)):
        raise InvalidMeasurement(f"vLLM gave {rows.shape} numbers for {len(targets)} targets")
    typed = _TYPED + kind.extra
    values = {
        name: column.astype(DTYPES[name] if name in typed else np.float32)
        for name, column in zip(kind.columns, rows.T, strict=True)
    }
    names = [name for name in COMPARED + DRAFT + kind.extra + FULL if name in values]
    compared = {name: values.pop(name) for name in names}
    scores = PromptScores(**values, against=Comparison(**compared) if compared else None)
    for name, got, wanted in (
        ("target", scores.target, targets),
        ("position", scores.position, prompt.positions),
    ):
        if not np.array_equal(got, wanted):
            i = int(np.flatnonzero(got != wanted)[0])
            raise InvalidMeasurement(f"vLLM scored {name} {got[i]} where {wanted[i]} was asked")
    return scores


def check_prompts(
    prompts: Sequence[Ids],
    targets: Sequence[Ids] | None,
    first: Sequence[int] | None,
    *,
    longest: int,
    entries: int,
    vocabulary: int | None,
    rows: Sequence[int] | None = None,
    places: Sequence[int] | None = None,
    chosen: Sequence[Ids | None] | None = None,
) -> list[Prompt]:
    """Raises EngineError for whatever vLLM would choke on or, worse, not notice.

    - `longest`: tokens of the longest prompt; `entries`: of the model's vocabulary.
    - `vocabulary`: how many of them the softmax runs over.
    - `rows`, `places`: of `Against` and `Keep`. `chosen`: of `Prompt`.
    """
    lists = {
        "targets": targets, "first": first, "rows": rows, "places": places, "chosen": chosen
    }  # fmt: skip
    for name, given in lists.items():
        if given is not None and len(given) != len(prompts):
            raise EngineError(f"{len(given)} {name} for {len(prompts)} prompts")
    if vocabulary is not None and not (
        isinstance(vocabulary, int | np.integer) and 0 < vocabulary <= entries
    ):
        raise EngineError(f"vocabulary {vocabulary}: the head has {entries} entries")
    result = []
    for i, prompt in enumerate(prompts):
        ids = _ids(prompt, f"prompt {i}", entries)
        goal = None if targets is None else _ids(targets[i], f"targets of prompt {i}", entries)
        if not 0 < len(ids) <= longest:
            raise EngineError(f"prompt {i} has {len(ids)} tokens: 1 to {longest} can be scored")
        if goal is not None and len(goal) != len(ids):
            raise EngineError(f"prompt {i} has {len(ids)} tokens and {len(goal)} targets")
        begin = 0 if first is None else first[i]
        if not isinstance(begin, int | np.integer):
            raise EngineError(f"first {begin!r} of prompt {i}: not an integer")
        if not 0 <= begin <= len(ids):
            raise EngineError(f"first {begin} of prompt {i}: it has {len(ids)} tokens")
        row, place = (0 if given is None else int(given[i]) for given in (rows, places))
        some = None if chosen is None else _chosen(chosen[i], i, len(ids) - (goal is None))
        checked = Prompt(ids, goal, int(begin), row=row, place=place, chosen=some)
        if vocabulary is not None and (outside := checked.expected >= vocabulary).any():
            raise EngineError(
                f"prompt {i}: target {checked.expected[outside][0]} is not among the {vocabulary} "
                "entries that the softmax runs over"
            )
        result.append(checked)
    return result


def _chosen(values: Ids | None, i: int, most: int) -> NDArray[np.int32] | None:
    """The tokens that prompt `i` is scored after, of so many. Raises EngineError."""
    if values is None:
        return None
    places = np.asarray(values, np.int32)
    if len(places) and (places[0] < 0 or places[-1] >= most or (np.diff(places) <= 0).any()):
        raise EngineError(f"chosen tokens of prompt {i}: not rising numbers below {most}")
    return places


def _ids(values: Ids, what: str, entries: int) -> NDArray[np.int32]:
    try:
        ids = np.asarray(values)
    except ValueError:
        raise EngineError(f"{what}: not a list of token ids") from None
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise EngineError(f"{what}: not a list of token ids")
    outside = (ids < 0) | (ids >= min(entries, MAX_EXACT_ID))
    if outside.any():
        raise EngineError(f"{what}: id {ids[outside][0]} is not one of the vocabulary's {entries}")
    return ids.astype(np.int32)

"""The interface of engines: options make one; Work goes in, Scores come out, a pass at a time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from scoremode.checkpoint.files import Checkpoint
from scoremode.errors import EngineError
from scoremode.results.scores import Scores
from scoremode.text.batching import grouped, parts_of, passes_of, size_of
from scoremode.text.plan import Plan

if TYPE_CHECKING:
    # They need torch, which a plan alone does not.
    import torch

    from scoremode.engines.torch.ranks.messages import Ranks
    from scoremode.head.project import Head
    from scoremode.reference.base import Reference, Span
    from scoremode.reference.writer import HeadTensors, Keeper

# Called with the number of window tokens whose work is done since the last call, in fractions.
Progress = Callable[[float], None]


class OutOfMemory(EngineError):
    """The device has too little memory for the schedule; a smaller micro-batch may fit."""


@dataclass(frozen=True)
class Schedule:
    """The grouping of windows, stored with a run, so that a resumed one groups them alike.

    - `pass_windows`: windows that go through all layers together; the unit of progress.
    - `batch_windows`: windows that go through one layer together.
    - `chunk_tokens`: tokens of a longer window that go together through what takes each token by
      itself; None where all of them do.

    Of conversations, whose lengths are many (`grouping`):

    - `pass_tokens`, `batch_tokens`: the most of both when filled up; None where windows alone count.
    - `pads`: whether windows of other lengths share a micro-batch.
    - `split`: into how many parts micro-batches are cut, 1 as they were made.
    - `row_tokens`: windows that begin alike lie in rows of so many tokens, with what they have in
      common once (`text.batching`); None where each window has a row of its own.
    """

    pass_windows: int
    batch_windows: int
    chunk_tokens: int | None = None
    pass_tokens: int | None = None
    batch_tokens: int | None = None
    pads: bool = False
    split: int = 1
    row_tokens: int | None = None

    def passes(self, plan: Plan) -> list[range]:
        """The windows of each pass; where the plan is looked at, one ends."""
        passes: list[range] = []
        begin = 0
        # A look at the scores waits for all of the windows before it, and for no other.
        for end in plan.looks:
            if self.pass_tokens is not None:
                whole = self._unsplit(plan, range(begin, end))
                sizes = [self.size(plan, batch) for batch in whole]
                most, tokens = self.pass_windows, self.pass_tokens
                passes += passes_of(whole, sizes, tokens=tokens, most=most)
                begin = end
                continue
            cuts = range(begin, end, self.pass_windows)
            passes += [range(i, min(i + self.pass_windows, end)) for i in cuts]
            begin = end
        return passes

    def batches(self, plan: Plan, windows: range) -> list[range]:
        """The windows of each micro-batch of a pass: neighbours of equal length, or where the schedule
        `pads` of lengths that leave little to fill."""
        if self.batch_tokens is not None:
            whole = self._unsplit(plan, windows)
            return [part for batch in whole for part in parts_of(batch, self.split)]
        batches: list[range] = []
        for w in windows:
            begin = batches[-1].start if batches else w
            if begin < w < begin + self.batch_windows and plan.lengths[w] == plan.lengths[begin]:
                batches[-1] = range(begin, w + 1)
            else:
                batches.append(range(w, w + 1))
        return batches

    def size(self, plan: Plan, batch: range) -> int:
        """Tokens of a micro-batch, with what fills it up."""
        return size_of(plan, batch, self.row_tokens)

    def halved(self) -> "Schedule":
        """Returns the same passes in micro-batches of half the windows, at least one."""
        if self.batch_tokens is not None:
            return replace(self, split=2 * self.split)
        return replace(self, batch_windows=max(1, self.batch_windows // 2))

    @property
    def batch_words(self) -> str:
        """The size of a micro-batch in words."""
        if self.batch_tokens is not None:
            return f"{self.batch_tokens // self.split} tokens"
        return f"{self.batch_windows} windows"

    def to_json(self) -> dict[str, int]:
        """Its fields, those that say something."""
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        if self.batch_tokens is None:
            del fields["pads"], fields["split"]
        return fields

    def _unsplit(self, plan: Plan, windows: range) -> list[range]:
        """Micro-batches as they were made, of windows that begin with one."""
        most, tokens = self.batch_windows, self.batch_tokens
        assert tokens is not None
        return grouped(plan, windows, tokens=tokens, most=most, pads=self.pads, row=self.row_tokens)


@dataclass(frozen=True, eq=False)
class Extras:
    """Work that is wanted beside a model's own scores.

    - `reference`: the base to compare each prediction with; `full`: with all that costs a second
      pass over the logits; `draft`: the temperature of drafts whose acceptance is measured.
    - `keeper`: where the final states go, to be a reference.
    """

    reference: "Reference | None" = None
    full: bool = False
    draft: float | None = None
    keeper: "Keeper | None" = None


class Engine(Protocol):
    """A loaded model that can score plans.

    `vocabulary`: how many entries its softmax runs over.
    """

    @property
    def vocabulary(self) -> int: ...

    def schedule(self, plan: Plan) -> Schedule:
        """The schedule for `plan`, from fixed quantities only: never from free memory."""
        ...

    def score(
        self,
        plan: Plan,
        schedule: Schedule,
        first_pass: int = 0,
        progress: Progress | None = None,
        extras: Extras | None = None,
    ) -> Iterator[Scores]:
        """The Scores of each pass from `first_pass` on, in order."""
        ...

    def head_tensors(self) -> "HeadTensors":
        """The model's head over `vocabulary`, as a reference keeps it."""
        ...

    def identity(self) -> dict[str, Any]:
        """Everything about model, arithmetic and device that can move a score."""
        ...

    def describe(self) -> dict[str, Any]:
        """The record's `engine` section: what ran, with memory and seconds a stage so far."""
        ...

    def close(self) -> None:
        """Ends what the engine has started; afterwards it can't score."""
        ...


class BaseEngine(Engine, Protocol):
    """An engine whose states and head another model of the same process is compared with."""

    @property
    def head(self) -> "Head": ...

    def final_states(self, work: "Work") -> "list[torch.Tensor]":
        """The head's input for every scored target of the work's windows, on the device: [N, D] for
        each micro-batch."""
        ...

    def head_work(self, work: "Work") -> float:
        """The head's part of the work's window tokens, for progress."""
        ...

    def held_bytes(self, plan: Plan) -> int:
        """Bytes of a GPU's memory that it keeps from the model beside it; 0 on a CPU."""
        ...


class Options(Protocol):
    """A user's choices for one kind of engine, which they make. Frozen, picklable, and light: they are
    there before torch or vLLM is imported.

    - `modules`: what to import before `make`, which another thread may do early.
    - `gpu`: the number of the GPU that this process will compute on, to be opened early, whether it is
      there or not; None for a CPU, and for an engine whose own processes compute.
    - `attentions`: the ways to compute attention that can be asked for, the usual one first, the one
      that every model has last; none where the engine decides.
    - `runs_beside`: whether `make_base` can give a base that runs in the same process.
    - `reads_gguf`: whether a checkpoint may be a GGUF file; `mixes`: whether it may be a Mixture.
    """

    modules: ClassVar[Sequence[str]]
    attentions: ClassVar[Sequence[str]]
    runs_beside: ClassVar[bool]
    reads_gguf: ClassVar[bool]
    mixes: ClassVar[bool]

    @property
    def dtype(self) -> str: ...

    @property
    def trust_remote_code(self) -> bool: ...

    @property
    def gpu(self) -> int | None: ...

    def make(
        self,
        checkpoint: Checkpoint,
        vocabulary: int | None,
        plan: Plan,
        notify: Callable[[str], None],
        ranks: "Ranks | None" = None,
    ) -> Engine:
        """The engine, ready to score windows no longer than those of `plan`.

        - `vocabulary`: the softmax runs over the head's first so many entries, all if None or if it
          has fewer.
        - `notify`: gets one line for what a user should know.
        - `ranks`: the processes that share its work, of which this is one.

        Raises ScoremodeError.
        """
        ...

    def make_base(self, checkpoint: Checkpoint, vocabulary: int | None, longest: int) -> BaseEngine:
        """The engine of a base that runs beside the measured model, on windows of up to `longest`
        tokens. Raises ScoremodeError, and EngineError where nothing runs beside another."""
        ...

    def of_base(self, checkpoint: Checkpoint) -> "Options":
        """Returns these options for the base in `checkpoint`: its keys and values are in no quantized
        cache."""
        ...

    def in_dtype_of(self, checkpoint: Checkpoint) -> "Options":
        """Returns these options for the base of the model in `checkpoint`, in the dtype that the model
        computes in with them: what rounding differs by is no divergence of the weights."""
        ...

    def in_dtype(self, name: str) -> "Options":
        """Returns these options for a model that is compared with what was computed in a dtype: in that
        one, where the user names none and the engine can choose."""
        ...

    def keeping(self) -> "Options":
        """Returns these options for a run whose states are kept."""
        ...

    def sharing(self, held: "Callable[[torch.device], int]") -> "Options":
        """Returns these options for an engine that shares its device with a base.

        `held`: called with that device, gives the bytes that the base takes of a GPU's memory; not
        called where the engine's own processes have the device. Raises EngineError, UsageError.
        """
        ...

    def computing(self, dtype: str, attention: str | None = None) -> "Options":
        """Returns these options in another dtype, and with another of `attentions` if one is named."""
        ...


@dataclass(frozen=True, eq=False)
class Work:
    """Whole micro-batches of the pass `number` of a plan.

    - `progress`: called with window tokens whose work is done.
    - `extras`: all that is wanted of the pass beside its scores.
    - `put`: takes the final states, [N, D] for each micro-batch; None where they are not kept.
    """

    plan: Plan
    schedule: Schedule
    number: int
    windows: range
    progress: Progress = lambda _: None
    extras: Extras = field(default_factory=Extras)
    put: "Callable[[Sequence[torch.Tensor]], None] | None" = None

    @classmethod
    def passes(
        cls,
        plan: Plan,
        schedule: Schedule,
        first_pass: int = 0,
        progress: Progress | None = None,
        extras: Extras | None = None,
    ) -> list[Self]:
        """Each pass from `first_pass` on, as `Engine.score` is asked for them."""
        progress, extras = progress or (lambda _: None), extras or Extras()
        passes = []
        for i, windows in list(enumerate(schedule.passes(plan)))[first_pass:]:
            put = None if extras.keeper is None else partial(extras.keeper.put, i)
            passes.append(cls(plan, schedule, i, windows, progress, extras, put))
        return passes

    @property
    def batches(self) -> list[range]:
        """The windows of each micro-batch."""
        return self.schedule.batches(self.plan, self.windows)

    @property
    def spans(self) -> "list[Span]":
        """The rows of each micro-batch among the plan's scored targets."""
        offsets = self.plan.offsets
        return [(int(offsets[b.start]), int(offsets[b.stop])) for b in self.batches]

    @property
    def longest(self) -> int:
        """Tokens of the longest window."""
        return int(self.plan.lengths[self.windows.start : self.windows.stop].max())

    @property
    def tokens(self) -> int:
        """Tokens of all windows."""
        return int(self.plan.lengths[self.windows.start : self.windows.stop].sum())

    def part(self, windows: range) -> Self:
        """Some whole micro-batches of it."""
        return replace(self, windows=windows)

    @property
    def sizes(self) -> list[int]:
        """Tokens of each micro-batch, with what fills it up."""
        return [self.schedule.size(self.plan, batch) for batch in self.batches]

    def cut_at(self, tokens: int) -> list[Self]:
        """Parts of at most so many tokens with what fills them up, or of one micro-batch that has
        more."""
        most = len(self.windows)
        runs = passes_of(self.batches, self.sizes, tokens=tokens, most=most)
        return [self.part(run) for run in runs]

    def cut(self, most: int) -> list[Self]:
        """Parts of at most so many windows, or of one micro-batch that has more."""
        runs: list[range] = []
        for batch in self.batches:
            if runs and batch.stop - runs[-1].start <= most:
                runs[-1] = range(runs[-1].start, batch.stop)
            else:
                runs.append(batch)
        return [self.part(run) for run in runs]

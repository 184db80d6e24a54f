"""A run's request and its result."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from scoremode.engines.base import Options
from scoremode.results.gates import Gates
from scoremode.results.statistics.effects import CONFIDENT
from scoremode.text.calibration import Calibration
from scoremode.text.corpus import Corpus
from scoremode.text.protocol import Protocol as TextProtocol
from scoremode.text.shard import Shard

if TYPE_CHECKING:
    from scoremode.engines.torch.ranks.messages import Ranks
    from scoremode.results.scores import Scores
    from scoremode.runs.mixtures import Swap
    from scoremode.text.task_requests import PlannedCorpus, RequestCorpus

__all__ = ["Change", "Judge", "Request", "Result", "TotalProgress"]

# The thing that changes when a base is run against itself.
Change = Literal["auto", "attention", "dtype", "engine"]
# Called with window tokens done since the last call, and how many there are in all.
TotalProgress = Callable[[float, int], None]


class Judge(Protocol):
    """Whoever asked for log-likelihoods, and makes metrics of them."""

    def identity(self) -> dict[str, Any]:
        """What another run must share to be judged as this one is."""
        ...

    def section(
        self, folder: Path, corpus: "RequestCorpus", planned: "PlannedCorpus", scores: "Scores"
    ) -> dict[str, Any]:
        """The record's section `tasks`, of all requests' answers; what is too long for a record goes
        to files in `folder`."""
        ...


@dataclass(frozen=True)
class Request:
    """A measurement to be made, and where its run goes.

    - `output`: the folder that runs go to, or an earlier run's own folder.
    - `options`: of the engine to score with, which they make.
    - `swaps`: modules of the model that are taken from other checkpoints.
    - `quantization`: the method that the user believes it has, refused where it has another.
    - `resume`: go on with a killed run of the same request; `if-there`: where there is one, without a
      word where there is none.
    - `reference`: the base to compare with: a reference's folder, a model's, or its hub id;
      `reference_revision` of the last. `full`: with all that costs a second pass over the logits.
    - `confident`: the probability above which the base is sure of a token, for the record.
    - `noise_floor`: what to change when the base is run once more, against itself.
    - `gates`: limits that the comparison is held against, for the record.
    - `keep`: make the run a reference: its own folder is `output` then, and the head is stored there
      or left in the checkpoint.
    - `calibration`: a text that is looked for in the scored one.
    - `shard`: score its passes alone, for `results.shards` to make a run of.
    - `judge`: of a corpus of requests, what makes the tasks' metrics of their answers.
    - `token_text`: keep each target's text with its scores.
    - `command`: what the user typed, for the record.
    - `ranks`: the processes that share the work, of which this is one; None where it is alone.
    """

    model: str
    corpus: Corpus
    protocol: TextProtocol
    options: Options
    output: Path
    revision: str | None = None
    tokenizer: str | None = None
    swaps: "tuple[Swap, ...]" = ()
    quantization: str | None = None
    resume: Literal[True, False, "if-there"] = False
    reference: str | None = None
    reference_revision: str | None = None
    full: bool = False
    confident: float = CONFIDENT
    noise_floor: Change | None = None
    gates: Gates | None = None
    keep: Literal["stored", "checkpoint"] | None = None
    calibration: Calibration | None = None
    judge: Judge | None = None
    token_text: bool = False
    shard: Shard | None = None
    command: tuple[str, ...] = ()
    ranks: "Ranks | None" = None


@dataclass(frozen=True)
class Result:
    """A run's folder and its record."""

    folder: Path
    record: dict[str, Any]

"""A run's request and its result, and what can't be asked for together."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from scoremode.checkpoint.gguf.names import is_gguf
from scoremode.checkpoint.model_files import ModelFiles, resolve_model, resolve_tokenizer
from scoremode.engines.base import Options
from scoremode.engines.http.options import HttpOptions
from scoremode.errors import UsageError
from scoremode.results.gates import Gates
from scoremode.results.record.checks import check_done
from scoremode.results.record.definition import Done, Record
from scoremode.results.shards import Shard
from scoremode.results.statistics.divergence import CONFIDENT
from scoremode.results.statistics.windows import Estimate
from scoremode.text.calibration import Calibration
from scoremode.text.corpus import Corpus
from scoremode.text.protocol import Protocol as TextProtocol
from scoremode.text.stopping import stop_rule

if TYPE_CHECKING:
    from scoremode.engines.torch.ranks.messages import Ranks
    from scoremode.results.scores import Scores
    from scoremode.text.task_requests import PlannedCorpus, RequestCorpus


# The thing that changes when a base is run against itself.
Change = Literal["auto", "attention", "dtype", "engine"]
# Called with window tokens done since the last call, and how many there are in all.
TotalProgress = Callable[[float, int], None]
# Called with the metrics of the windows done, by name: `ppl`, against a base `ppl_ratio` and `kld`.
Watch = Callable[[Mapping[str, Estimate]], None]


class Judge(Protocol):
    """Makes metrics of the log-likelihoods that it asked for."""

    def identity(self) -> dict[str, Any]:
        """Facts that another run must share to be judged as this one is."""
        ...

    def section(
        self, folder: Path, corpus: "RequestCorpus", planned: "PlannedCorpus", scores: "Scores"
    ) -> dict[str, Any]:
        """The record's section `tasks`, of all requests' answers; what is too long for a record goes
        to files in `folder`."""
        ...


@dataclass(frozen=True)
class Swap:
    """Modules to be taken from another checkpoint.

    - `pattern`: as `schemes.mixing.modules_named` reads it.
    - `source`: a folder, a GGUF file or a hub id, `revision` of the last.
    - `is_base`: whether it is the base that the run is compared with.
    - `fingerprint`: what it must have, or None.
    """

    pattern: str
    source: str | ModelFiles
    revision: str | None = None
    is_base: bool = False
    fingerprint: str | None = None

    @property
    def flag(self) -> str:
        return "--keep-dense" if self.is_base else "--swap"


@dataclass(frozen=True)
class Request:
    """A measurement to be made, and where its run goes.

    - `model`, `tokenizer`: names, or the files that they stand for where these were found already.
    - `output`: the folder that runs go to, or an earlier run's own folder.
    - `options`: of the engine to score with, which they make.
    - `swaps`: modules of the model that are taken from other checkpoints.
    - `quantization`: the method that the user believes it has, refused where it has another.
    - `resume`: go on with a killed run of the same request; `if-there`: where there is one, without a
      word where there is none.
    - `reference`: the base to compare with: a reference's folder, a model's, or its hub id;
      `reference_revision` of the last. `full`: with all that costs a second pass over the logits;
      `draft`: the temperature at which drafts are sampled whose acceptance is measured as well.
    - `confident`: the probability above which the base is sure of a token, for the record.
    - `noise_floor`: what to change when the base is run once more, against itself.
    - `gates`: limits that the comparison is held against, for the record.
    - `keep`: make the run a reference, also one that is compared with another: its own folder is
      `output` then, and the head is stored there or left in the checkpoint.
    - `calibration`: a text that is looked for in the scored one.
    - `shard`: score its passes alone, for `results.shards` to make a run of.
    - `judge`: of a corpus of requests, what makes the tasks' metrics of their answers.
    - `token_text`: keep each target's text with its scores.
    - `label`: what the user calls the model, for the record; None for what its name says.
    - `command`: what the user typed, for the record.
    - `ranks`: the processes that share the work, of which this is one; None where it is alone.
    """

    model: str | ModelFiles
    corpus: Corpus
    protocol: TextProtocol
    options: Options
    output: Path
    revision: str | None = None
    tokenizer: str | ModelFiles | None = None
    swaps: tuple[Swap, ...] = ()
    quantization: str | None = None
    resume: Literal[True, False, "if-there"] = False
    reference: str | ModelFiles | None = None
    reference_revision: str | None = None
    full: bool = False
    draft: float | None = None
    confident: float = CONFIDENT
    noise_floor: Change | None = None
    gates: Gates | None = None
    keep: Literal["stored", "checkpoint"] | None = None
    calibration: Calibration | None = None
    judge: Judge | None = None
    token_text: bool = False
    shard: Shard | None = None
    label: str | None = None
    command: tuple[str, ...] = ()
    ranks: "Ranks | None" = None

    @property
    def captures_base(self) -> bool:
        """Tells whether the base is a model that the request's engine can't run beside another."""
        reference = self.reference
        is_model = isinstance(reference, ModelFiles) or (
            reference is not None and _is_model(reference)
        )
        return is_model and not self.options.runs_beside

    def base_files(self) -> ModelFiles | None:
        """The files of a base that is a model; None of a kept reference, and where there is no base.
        Raises CheckpointError."""
        if isinstance(self.reference, str):
            named = self.reference if _is_model(self.reference) else None
            return None if named is None else resolve_model(named, self.reference_revision)
        return self.reference

    def resolved(self) -> "Request":
        """This request with the files of all that it names found: model, tokenizer, base, and the other
        checkpoints of a mixture. A name that occurs twice is looked up once. Raises CheckpointError."""
        reference, known = self.reference, dict[tuple[str, str | None], ModelFiles]()
        if isinstance(reference, ModelFiles):
            known[str(reference), self.reference_revision] = reference

        def find(model: str | ModelFiles, revision: str | None) -> ModelFiles:
            key = str(model), revision
            if key not in known:
                known[key] = resolve_model(model, revision)
            return known[key]

        model = find(self.model, self.revision)
        if isinstance(reference, str) and _is_model(reference):
            reference = find(reference, self.reference_revision)
        return replace(
            self,
            model=model,
            tokenizer=None if self.tokenizer is None else resolve_tokenizer(self.tokenizer),
            reference=reference,
            swaps=tuple(replace(s, source=find(s.source, s.revision)) for s in self.swaps),
        )


def _is_model(reference: str) -> bool:
    """Tells whether a base is a model, and no run's folder and no file of log-probabilities."""
    path = Path(reference)
    if os.path.isfile(path):  # noqa: PTH113  Path.is_file raises for a name too long
        return is_gguf(path)
    return not os.path.isfile(path / "record.json")  # noqa: PTH113


@dataclass(frozen=True)
class Result:
    """A run's folder and its record."""

    folder: Path
    record: Record

    @property
    def whole(self) -> Done:
        """The record of a whole run. Raises RunFolderError for a shard."""
        return check_done(self.folder, self.record)


def check_request(request: Request) -> None:
    """Raises UsageError where a request asks for what can't be had together, ProtocolError for a rule
    to stop by that is none."""
    check_stopping(request)
    check_sharding(request)
    if request.keep is not None and request.captures_base:
        raise UsageError(
            f"--keep: with --engine vllm the base runs first: keep it with scoremode reference "
            f"{request.reference}, and give that as --reference"
        )
    asked = {"--stop-when": request.protocol.stop_when, "--shard": request.shard}
    for flag, value in asked.items():
        if value is not None and request.captures_base:
            raise UsageError(
                f"{flag} {value}: with --engine vllm the base runs first, over all windows: keep it "
                "with scoremode reference, and give that as --reference"
            )


def check_stopping(request: Request) -> None:
    """Raises UsageError where the request has a rule to stop by that it can't keep, or that nothing
    it measures can meet; ProtocolError for what is no rule."""
    if (written := request.protocol.stop_when) is None:
        return
    rule = stop_rule(written)
    if request.keep is not None:
        raise UsageError(
            f"--stop-when {rule}: a reference has all windows, of which any run may take some: keep it "
            "without, and give --stop-when to scoremode kld"
        )
    if rule.metric == "kld" and isinstance(request.options, HttpOptions):
        raise UsageError(f"--stop-when {rule}: a server allows a bound on the KLD alone")
    if rule.metric == "kld" and request.reference is None:
        raise UsageError(f"--stop-when {rule}: there is no KLD without --reference BASE")
    if request.noise_floor is not None:
        raise UsageError(
            f"--stop-when {rule} and --noise-floor {request.noise_floor}: the base would run again "
            "over all windows"
        )


def check_sharding(request: Request) -> None:
    """Raises UsageError where what is asked for is of a whole run, and a shard is as well."""
    if (shard := request.shard) is None:
        return
    asked = f"--shard {shard}"
    if (rule := request.protocol.stop_when) is not None:
        raise UsageError(
            f"{asked} and --stop-when {rule}: the rule looks at the scores of all windows, and a shard "
            "has its own alone"
        )
    if request.protocol.text == "pages":
        raise UsageError(
            f"{asked}: protocol {request.protocol.name} counts the words of whole pages, whose windows "
            "may lie in several shards: --devices or torchrun share one run"
        )
    if request.keep is not None:
        raise UsageError(
            f"{asked}: is for scoremode ppl and kld; a reference's states lie in one folder, which "
            "--devices or torchrun fill together"
        )
    if request.noise_floor is not None:
        raise UsageError(
            f"{asked} and --noise-floor {request.noise_floor}: the base would run again over all "
            "windows: ask for it in a run that is no shard"
        )
    if request.gates:
        raise UsageError(
            f"{asked}: a gate judges the whole run: give it to scoremode merge, or to scoremode show"
        )

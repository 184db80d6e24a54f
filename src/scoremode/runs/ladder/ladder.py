"""A ladder step by step: each is scored once, against the top, and its states are kept until the next
step has been compared with it.

What is done is in the manifest, `ladder.json`, which is written whole at every step, so that a killed
ladder goes on where it was, in the middle of a run too.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from scoremode.checkpoint.files import open_checkpoint
from scoremode.checkpoint.model_files import ModelFiles
from scoremode.engines.torch.device import choose_device
from scoremode.errors import EngineError, RunFolderError, ScoremodeError, line_of
from scoremode.lib.files import remove_folder, write_text
from scoremode.lib.json import json_text
from scoremode.llama_cpp.export import export_llama_cpp
from scoremode.llama_cpp.tool import write_predictions
from scoremode.reference.stored import StoredReference
from scoremode.results.folders.store import HEAD, RECORD, STATES, TOKENS, RunFolder, seal_of
from scoremode.results.ladder import (
    FILE_NOISE,
    MANIFEST,
    NOISE,
    SCHEMA,
    SCHEMA_VERSION,
    TOP,
    Ladder,
    Step,
    findings,
    read_ladder,
)
from scoremode.results.record.checks import check_done, checked_record
from scoremode.results.record.definition import Done
from scoremode.results.record.section import first_difference
from scoremode.results.record.sections import now
from scoremode.runs.ladder.steps import (
    EXPORTED,
    PREDICTIONS,
    LadderRequest,
    Plan,
    Planned,
    after_words,
    file_noise_words,
    noise_words,
    plan_ladder,
    shown,
)
from scoremode.runs.planning import plan_request
from scoremode.runs.request import Request
from scoremode.runs.suspects import suspects
from scoremode.runs.sweep.manifest import held, placed
from scoremode.startup.warmup import check_installation
from scoremode.text.kept_text import KeptText


@dataclass(frozen=True)
class Work:
    """One command line of a ladder, to be run.

    - `words`: without the program's name; `title`: what it is, for the user.
    - `engine`: whose process it needs; of `llama.cpp` not the run is made, but the file of predictions
      that its MODEL is. `python`: the interpreter, None for this one.
    """

    words: tuple[str, ...]
    title: str
    engine: str = "torch"
    python: Path | None = None


# Makes the run of a command line, or goes on with it, and returns its folder. Raises ScoremodeError.
Runner = Callable[[Work], Path]


def run_ladder(
    request: LadderRequest, run: Runner, *, notify: Callable[[str], None] = lambda _: None
) -> Ladder:
    """Makes all steps that can be made and are not there yet; the manifest, with its findings.

    A step that fails is noted, and the next one is compared with the one before it. `notify` gets a
    line for each step that ends. Raises ScoremodeError where the top can't be made, or nothing behind
    it.
    """
    check_installation()
    plan = plan_ladder(request)
    with held(request.output, "ladder"):
        climb = _Climb(request, plan, run, notify)
        climb.all_steps()
        return climb.finished()


class _Climb:
    """A ladder on its way."""

    def __init__(
        self, request: LadderRequest, plan: Plan, run: Runner, notify: Callable[[str], None]
    ):
        self._request, self._plan, self._run, self._notify = request, plan, run, notify
        self._folder = request.output
        earlier = read_ladder(request.output)
        if earlier is not None:
            _check_same(request.output, earlier, plan.asked)
        known = {s["name"]: s for s in earlier["steps"]} if earlier else {}
        self._ladder: Ladder = {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "created": now() if earlier is None else earlier["created"],
            "updated": now(),
            "command": list(request.command),
            "model": request.model,
            "base": request.base,
            "asked": plan.asked,
            "steps": [_step(planned, request, known.get(planned.name)) for planned in plan.steps],
            "noise": [] if earlier is None else earlier["noise"],
            "suspects": None if earlier is None else earlier["suspects"],
            "sha256": "",
        }
        self._write()

    def all_steps(self) -> None:
        """Makes what is missing, each step when the one before is there."""
        before: str | None = None
        for planned in self._plan.steps:
            step = self._of(planned.name)
            if planned.left_out is not None:
                continue
            try:
                self._make(planned, step, before)
            except ScoremodeError as error:
                if planned.name == TOP:
                    raise
                step.update(status="failed", reason=line_of(error))
                self._write()
                self._notify(f"{planned.name}: error: {step['reason']}")
                continue
            self._drop_before(before)
            before = planned.name
            if planned.name == "weights":
                self._look_for_suspects()
            if planned.name == self._plan.noise_of:
                self._make_noise()
        if not self._failed and not self._request.keep:
            for planned in self._plan.chain:
                drop_states(self._folder / planned.name)
            (self._folder / PREDICTIONS).unlink(missing_ok=True)

    def finished(self) -> Ladder:
        """The manifest with its findings. Raises RunFolderError where there are none."""
        if all(s["status"] != "done" for s in self._ladder["steps"][1:]):
            reasons = [s["reason"] for s in self._ladder["steps"] if s["status"] == "failed"]
            raise RunFolderError(f"no step of the ladder could be made: {reasons[0]}")
        self._ladder["findings"] = findings(self._folder, self._ladder)
        self._write()
        return self._ladder

    @property
    def _failed(self) -> bool:
        return any(step["status"] == "failed" for step in self._ladder["steps"])

    def _of(self, name: str) -> Step:
        return next(step for step in self._ladder["steps"] if step["name"] == name)

    def _make(self, planned: Planned, step: Step, before: str | None) -> None:
        """Makes a step's run, and the one that compares it with the step before."""
        if step["status"] == "done" and step["before"] == before:
            return
        step.update(status="running", before=before, after=None, after_scores=None)
        self._write()
        for needed in dict.fromkeys(filter(None, (before and TOP, before))):
            self._keep_again(needed)
        if planned.engine == "llama.cpp":
            self._make_predictions()
            self._make_file_noise(str(before))
        else:
            # A step of an earlier call whose neighbors were others.
            _discard_dropped(self._folder / planned.name)
        record = self._scored(planned, step)
        if before not in (None, TOP):
            words = after_words(self._request, planned, str(before))
            folder = self._run(Work(words, f"{planned.name} against {before}"))
            step["after"] = placed(self._folder, folder)
            step["after_scores"] = _done(folder).scores.sha256
        step.update(status="done", reason=None)
        self._write()
        if before is not None:
            kld = record.metrics["kld"].value
            number = self._plan.chain.index(planned)
            of = len(self._plan.chain) - 1
            self._notify(f"{planned.name}: KLD {kld:.4g} nats from the top ({number} of {of})")

    def _scored(self, planned: Planned, step: Step) -> Done:
        """Runs a step against the top, or finds its run."""
        # What llama.cpp predicts lies in its file, which the torch engine compares.
        engine = "vllm" if planned.engine == "vllm" else "torch"
        folder = self._run(Work(planned.words, planned.name, engine, self._python(planned)))
        record = _done(folder)
        if step["status"] == "done" and step["scores"] != record.scores.sha256:
            raise RunFolderError(
                f"{self._folder / planned.name}: gives other scores than before: name another folder "
                "with -o, and measure all steps again"
            )
        step.update(folder=placed(self._folder, folder), scores=record.scores.sha256)
        return record

    def _make_predictions(self) -> None:
        """Has llama-perplexity write its file, of the plan that the weights' step has."""
        if not os.path.lexists(self._folder / PREDICTIONS):
            weights = next(p for p in self._plan.chain if p.name == "weights")
            self._run(Work(weights.words, "llama-perplexity itself", "llama.cpp"))

    def _python(self, planned: Planned) -> Path | None:
        return self._request.vllm_python if planned.engine == "vllm" else None

    def _keep_again(self, name: str) -> None:
        """Runs a step once more whose states were deleted, since another one is to be compared with
        it."""
        folder = self._folder / name
        if os.path.lexists(folder / RECORD):
            _done(folder)
            if not _discard_dropped(folder):
                return
        if name != TOP:
            self._keep_again(TOP)
        self._scored(next(p for p in self._plan.steps if p.name == name), self._of(name))

    def _make_noise(self) -> None:
        """Computes the last step of the torch engine otherwise, by which others are judged."""
        words = noise_words(self._request, self._plan)
        self._add_noise(NOISE, words, self._plan.noise_of, "computed otherwise", lambda: None)

    def _make_file_noise(self, before: str) -> None:
        """Compares a step with its own predictions as llama.cpp's file holds them, in 16 bits each."""
        file, kept = self._folder / EXPORTED, self._folder / before

        def export() -> None:
            device = choose_device(self._request.options.device, None, None).torch
            export_llama_cpp(StoredReference(kept), file, device=device)

        words = file_noise_words(self._request, before)
        self._add_noise(FILE_NOISE, words, before, "in llama.cpp's file", export)
        file.unlink(missing_ok=True)

    def _add_noise(
        self, name: str, words: tuple[str, ...], of: str, how: str, prepare: Callable[[], None]
    ) -> None:
        """Makes a part of the noise that is not there yet."""
        known = {step["name"]: step for step in self._ladder["noise"]}
        if name in known and known[name]["status"] == "done" and known[name]["before"] == of:
            return
        step = known[name] = _new(name, words, of)
        self._ladder["noise"] = list(known.values())
        try:
            self._keep_again(of)
            prepare()
            folder = self._run(Work(words, f"noise: {of} {how}"))
        # Not hidden: steps are judged by what any model may have then, which the manifest says.
        except ScoremodeError as error:
            step.update(status="failed", reason=line_of(error))
            self._notify(f"noise: error: {step['reason']}")
            return
        step.update(status="done", after=placed(self._folder, folder))
        step["after_scores"] = _done(folder).scores.sha256
        self._write()

    def _look_for_suspects(self) -> None:
        """Compares the model's own files with the base's, once."""
        if self._ladder["suspects"] is not None:
            return
        code = self._request.options.trust_remote_code
        try:
            found = suspects(self._plan.model, self._plan.base, trust_remote_code=code)
        # Not hidden: a ladder stands without it, and the user is told.
        except ScoremodeError as error:
            self._notify(f"weights: its files weren't compared with the base's: {line_of(error)}")
            return
        self._ladder["suspects"] = [one.to_json() for one in found]
        self._write()

    def _drop_before(self, before: str | None) -> None:
        """Deletes the states of the step before: nothing is compared with them any more. Where a step
        failed they stay, for another try."""
        if before not in (None, TOP) and not self._failed and not self._request.keep:
            drop_states(self._folder / str(before))

    def _write(self) -> None:
        self._ladder["updated"] = now()
        self._ladder["sha256"] = seal_of(cast(dict[str, Any], self._ladder))
        write_text(self._folder / MANIFEST, json_text(cast(dict[str, Any], self._ladder)))


def write_served(
    request: LadderRequest, asked: Request, progress: Callable[[int, int], None]
) -> Path:
    """Has llama-perplexity predict the text of a run that is `asked` for; returns its file.

    Raises EngineError where the text is not known by more than its tokens, and where the tool fails.
    """
    assert not isinstance(request.llama_cpp, str)
    asked = asked.resolved()
    code = asked.options.trust_remote_code
    assert isinstance(asked.model, ModelFiles)
    checkpoint = open_checkpoint(asked.model, code=code)
    planned = plan_request(asked, checkpoint)
    if isinstance(corpus := asked.corpus, KeptText):
        text = corpus.spelled(planned.tokenizer)
    else:
        text = corpus.text(planned.plan.protocol.text)
    if text is None:
        raise EngineError("llama-perplexity: its text is not known: name it with -f")
    file = request.output / PREDICTIONS
    write_predictions(
        request.llama_cpp, checkpoint.path, text, planned.plan, file, progress=progress
    )
    return file


def _check_same(folder: Path, earlier: Ladder, asked: dict[str, Any]) -> None:
    """Raises RunFolderError where the folder is another ladder's."""
    if found := first_difference("", earlier["asked"], asked):
        field, theirs, ours = found
        raise RunFolderError(
            f"{folder}: is another ladder, of {earlier['model']} beside {earlier['base']}: its {field} "
            f"is {theirs}, this one's {ours}: name another folder with -o"
        )


def _step(planned: Planned, request: LadderRequest, earlier: Step | None) -> Step:
    """A step as it is before it is made, or as an earlier call left it."""
    if planned.left_out is not None:
        return {**_new(planned.name, ()), "status": "left out", "reason": planned.left_out}
    made = _new(planned.name, planned.words)
    if planned.engine == "vllm" and request.vllm_python is not None:
        made["python"] = str(request.vllm_python)
    if earlier is None or earlier["status"] != "done":
        return made
    return {**earlier, "command": made["command"]}


def _new(name: str, words: Sequence[str], before: str | None = None) -> Step:
    return {
        "name": name,
        "status": "waiting",
        "reason": None,
        "command": shown(words),
        "python": None,
        "folder": None,
        "before": before,
        "after": None,
        "scores": None,
        "after_scores": None,
    }


def _done(folder: Path) -> Done:
    return check_done(folder, checked_record(folder))


def _discard_dropped(folder: Path) -> bool:
    """Removes a finished run whose states were deleted, and tells whether there was one. Raises
    RunFolderError."""
    if not os.path.lexists(folder / RECORD):
        return False
    document = checked_record(folder).document
    if document["status"] != "done" or "kept" in document:
        return False
    RunFolder.open(folder).discard()
    return True


def drop_states(folder: Path) -> None:
    """Deletes the states, head and tokens that a finished run keeps, and what its record says of them.

    A kill in between leaves a run that is whole, and files that the next call removes. Raises
    RunFolderError.
    """
    if not os.path.lexists(folder / RECORD):
        return
    held = RunFolder.open(folder)
    try:
        document = checked_record(folder).document
        if "kept" in document:
            document = {k: v for k, v in document.items() if k != "kept"}
            document["identity"] = {k: v for k, v in document["identity"].items() if k != "keep"}
            held.write_record(document)
        with suppress(FileNotFoundError):
            remove_folder(folder / STATES, lambda name: name.endswith(".safetensors"))
        for name in (HEAD, TOKENS):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise RunFolderError(f"{folder}: its states can't be removed: {error.strerror}") from None
    finally:
        held.drop_parts()
        held.close()

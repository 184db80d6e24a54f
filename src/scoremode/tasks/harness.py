"""lm-evaluation-harness, asked twice: for its questions, and with the answers for its metrics.

The first time its model notes what it is asked and ends the call, so that all requests of all tasks are
scored in one run; the second time it gives the answers. The tasks are those that were loaded first, and
seeds are set anew, so that both have the same prompts; a prompt that differs is an error.
"""

import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
)
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval import evaluator  # pyright: ignore[reportMissingImports]
from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

from scoremode.errors import CorpusError, ScoremodeError, words_of
from scoremode.results.folders.tables import answers_of
from scoremode.results.scores import Scores
from scoremode.tasks.asking import AskedLM, Key, answer_of, refusal, text_requests
from scoremode.tasks.consent import check_folder, sandboxed
from scoremode.tasks.judged import Judged, tasks_section
from scoremode.tasks.speaker import Speaker
from scoremode.text.asked import Asked, PlannedAsked, asked

__all__ = ["Harness", "Prompting"]

# The harness's own defaults (`lm_eval.defaults`).
_RANDOM_SEED, _OTHER_SEED = 0, 1234
_KINDS = ("loglikelihood", "loglikelihood_rolling")


@dataclass(frozen=True)
class Prompting:
    """What is asked, and how: the harness's arguments of `simple_evaluate`, by its own meaning.

    - `tasks`: names of tasks, groups and tags; `include_path`: a folder with more of them, and
      `runs_code`: whether they may run Python of their own (`consent.py`).
    - `num_fewshot`, `limit`: None for what each task says.
    - `chat`: by the model's chat template; `multiturn`: a turn for each example; `system`: a message.
    """

    tasks: tuple[str, ...]
    num_fewshot: int | None = None
    limit: float | None = None
    include_path: Path | None = None
    runs_code: bool = False
    chat: bool = False
    multiturn: bool = True
    system: str | None = None

    def to_json(self) -> dict[str, Any]:
        """All but the folder, whose place says nothing of what is in it, and what it may do."""
        apart = ("include_path", "runs_code")
        return {k: v for k, v in asdict(self).items() if k not in apart} | {
            "tasks": list(self.tasks)
        }


class _Asked(Exception):
    """Ends the first call: everything has been asked, of the tasks that were `loaded`."""

    def __init__(self, loaded: Any):
        super().__init__()
        self.loaded = loaded


class _Listener(AskedLM):
    """Is asked, and answers nothing."""

    def __init__(self, speaker: Speaker, manager: "_Loaded"):
        super().__init__(speaker)
        self._manager = manager

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> Any:
        raise _Asked(self._manager.loaded)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> Any:
        raise _Asked(self._manager.loaded)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> Any:
        raise _Asked(self._manager.loaded)


class _Knower(AskedLM):
    """Has all answers."""

    def __init__(self, speaker: Speaker, answers: Mapping[Key, tuple[float, bool]]):
        super().__init__(speaker)
        self._answers = answers

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        return [answer_of(request, self._answers) for request in requests]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        return [answer_of(request, self._answers)[0] for request in requests]


class _Loaded(TaskManager):
    """Loads tasks, and keeps what it has loaded."""

    loaded: Any = None

    def load(self, task_list: Any) -> Any:
        self.loaded = super().load(task_list)
        return self.loaded


class Harness:
    """Tasks of the harness: `asked` what they ask for, and the judge of the answers.

    `quiet`: without what the harness says on stderr.
    """

    def __init__(self, prompting: Prompting, speaker: Speaker, *, quiet: bool = False):
        self._prompting, self._speaker, self._quiet = prompting, speaker, quiet
        self._tasks: dict[str, Any] = {}
        self._loaded: Any = None

    def asked(self) -> Asked:
        """All that the tasks ask for. May fetch their data sets.

        Raises UsageError for a task that generates text, and for code without consent; CorpusError for
        one that is unknown or can't be loaded, TokenizerError where a chat template is missing or
        refuses.
        """
        wanted = self._prompting
        if wanted.chat:
            _ = self._speaker.template
        if wanted.include_path is not None and not wanted.runs_code:
            check_folder(wanted.include_path)
        folder = wanted.include_path and str(wanted.include_path)
        try:
            with _apart(quiet=self._quiet), self._rendering():
                manager = _Loaded(include_path=folder)
                evaluator.simple_evaluate(
                    model=_Listener(self._speaker, manager),
                    tasks=list(wanted.tasks),
                    num_fewshot=wanted.num_fewshot,
                    task_manager=manager,
                    random_seed=_RANDOM_SEED,
                    numpy_random_seed=_OTHER_SEED,
                    torch_random_seed=_OTHER_SEED,
                    fewshot_random_seed=_OTHER_SEED,
                    **self._arguments(),
                )
            raise CorpusError(f"--tasks {','.join(wanted.tasks)}: ask for nothing")
        except _Asked as ended:
            self._loaded = ended.loaded
        except ScoremodeError:
            raise
        # Not hidden: tasks are programs of others, and what they raise becomes one line.
        except Exception as error:  # noqa: BLE001
            raise CorpusError(
                f"--tasks {','.join(wanted.tasks)}: lm-evaluation-harness: {words_of(error, 300)}"
            ) from None
        self._tasks = self._loaded["tasks"]
        instances = [each for task in self._tasks.values() for each in task.instances]
        if others := [i.task_name for i in instances if i.request_type not in _KINDS]:
            raise refusal(others)
        return asked(text_requests(instances))

    def identity(self) -> dict[str, Any]:
        return self._prompting.to_json() | {"lm_eval": version("lm_eval")}

    def section(
        self, folder: Path, corpus: Asked, planned: PlannedAsked, scores: Scores
    ) -> dict[str, Any]:
        """The record's section `tasks`; every question's answers go to `answers.parquet` in
        `folder`."""
        answers = answers_of(scores, planned.window, planned.begin)
        keys = [(r.context, r.continuation) for r in corpus.requests]
        own = self._judged(keys, answers.logprob, answers.is_greedy)
        base = None
        if answers.base_logprob is not None and answers.base_is_greedy is not None:
            base = self._judged(keys, answers.base_logprob, answers.base_is_greedy)
        about = {"lm_eval": version("lm_eval"), **self._prompting.to_json()}
        datasets = {name: _dataset_of(task) for name, task in self._tasks.items()}
        return tasks_section(folder, corpus, planned, scores, own, base, datasets, about)

    def _judged(self, keys: list[Key], logprob: np.ndarray, is_greedy: np.ndarray) -> Judged:
        """The harness's results of these answers."""
        found = zip(logprob.tolist(), is_greedy.tolist(), strict=True)
        answers = dict(zip(keys, found, strict=True))
        random.seed(_RANDOM_SEED)
        np.random.seed(_OTHER_SEED)
        for task in self._tasks.values():
            task.set_fewshot_seed(seed=_OTHER_SEED)
        knower = _Knower(self._speaker, answers)
        with _apart(quiet=self._quiet), _one_process(), self._rendering():
            results = evaluator.evaluate(
                knower, self._loaded, log_samples=True, **self._arguments()
            )
        assert results is not None
        return Judged(results)

    def _arguments(self) -> dict[str, Any]:
        wanted = self._prompting
        return {
            "limit": wanted.limit,
            "system_instruction": wanted.system,
            "apply_chat_template": wanted.chat,
            "fewshot_as_multiturn": wanted.multiturn and wanted.chat,
            "confirm_run_unsafe_code": wanted.runs_code,
        }

    def _rendering(self) -> AbstractContextManager[None]:
        is_strange = self._prompting.include_path is not None and not self._prompting.runs_code
        return sandboxed() if is_strange else nullcontext()


@contextmanager
def _apart(*, quiet: bool) -> Iterator[None]:
    """Sends what the harness prints to stderr, since stdout is for the result; nowhere for `quiet`."""
    if not quiet:
        with redirect_stdout(sys.stderr):
            yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


@contextmanager
def _one_process() -> Iterator[None]:
    """Has the harness draw its bootstraps here: it would fork, with the threads and signals of this
    process."""
    before = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before


def _dataset_of(task: Any) -> dict[str, Any]:
    """Where a task's questions are from, and the fingerprints of their splits."""
    splits = task.dataset if isinstance(task.dataset, Mapping) else {}
    prints = {str(name): getattr(split, "_fingerprint", None) for name, split in splits.items()}
    return {
        "path": None if task.DATASET_PATH is None else str(task.DATASET_PATH),
        "name": None if task.DATASET_NAME is None else str(task.DATASET_NAME),
        "fingerprints": {name: text for name, text in prints.items() if text is not None},
    }

"""lm-evaluation-harness, asked twice: for its questions, and with the answers for its metrics.

The first time its model notes what it is asked and ends the call, so that all requests of all tasks are
scored in one run; the second time it gives the answers. The tasks are those that were loaded first, and
seeds are set anew, so that both have the same prompts; a prompt that differs is an error.

A folder of tasks may be somebody else's. Its YAML is a program in three ways: `!function` imports
Python, a metric that the harness doesn't have is one of HF Evaluate's, which is fetched and imported,
and templates run in Jinja with no sandbox. Without the user's consent the first two are refused by file
and line, and templates run in the sandbox. Tasks that come with the harness are as trusted as it is.
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

import jinja2.sandbox
import lm_eval.api.metrics  # pyright: ignore[reportMissingImports]  # fills the registry
import lm_eval.tasks  # pyright: ignore[reportMissingImports]
import numpy as np
import yaml
from lm_eval import evaluator, utils  # pyright: ignore[reportMissingImports]
from lm_eval.api.registry import metric_registry  # pyright: ignore[reportMissingImports]
from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

from scoremode.errors import CorpusError, ScoremodeError, UsageError, words_of
from scoremode.harness.chat import ChatPrompts
from scoremode.harness.metrics import HarnessResults, tasks_section
from scoremode.harness.requests import ChatLM, Key, answer_of, refusal, text_requests
from scoremode.lib.files import MOST_JSON, read_regular
from scoremode.results.folders.tables import answers_of
from scoremode.results.scores import Scores
from scoremode.text.task_requests import PlannedCorpus, RequestCorpus, request_corpus

_OWN = Path(lm_eval.tasks.__file__).parent.resolve()
# As the harness chooses it, so that both read the same.
_LOADER: Any = yaml.CSafeLoader if getattr(yaml, "__with_libyaml__", False) else yaml.FullLoader
# The harness's own defaults (`lm_eval.defaults`).
_RANDOM_SEED, _OTHER_SEED = 0, 1234
_KINDS = ("loglikelihood", "loglikelihood_rolling")


@dataclass(frozen=True)
class Prompting:
    """The harness's arguments of `simple_evaluate`, with the harness's own meaning.

    - `tasks`: names of tasks, groups and tags; `include_path`: a folder with more of them, and
      `runs_code`: whether they may run Python of their own.
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


class _TasksLoaded(Exception):
    """Ends the first call: everything has been asked, of the tasks that were `loaded`."""

    def __init__(self, loaded: Any):
        super().__init__()
        self.loaded = loaded


class _RequestCollector(ChatLM):
    """A model that collects requests and answers none."""

    def __init__(self, speaker: ChatPrompts, manager: "_TaskLoader"):
        super().__init__(speaker)
        self._manager = manager

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> Any:
        raise _TasksLoaded(self._manager.loaded)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> Any:
        raise _TasksLoaded(self._manager.loaded)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> Any:
        raise _TasksLoaded(self._manager.loaded)


class _AnsweringModel(ChatLM):
    """A model that has all answers."""

    def __init__(self, speaker: ChatPrompts, answers: Mapping[Key, tuple[float, bool]]):
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


class _TaskLoader(TaskManager):
    """A loader of tasks that keeps what it has loaded."""

    loaded: Any = None

    def load(self, task_list: Any) -> Any:
        self.loaded = super().load(task_list)
        return self.loaded


class Harness:
    """Tasks of the harness: their requests as a corpus, and the judge of the answers.

    `quiet`: hide the harness's own output on stderr.
    """

    def __init__(self, prompting: Prompting, speaker: ChatPrompts, *, quiet: bool = False):
        self._prompting, self._speaker, self._quiet = prompting, speaker, quiet
        self._tasks: dict[str, Any] = {}
        self._loaded: Any = None

    def corpus(self) -> RequestCorpus:
        """All requests of the tasks. May fetch their data sets.

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
                manager = _TaskLoader(include_path=folder)
                evaluator.simple_evaluate(
                    model=_RequestCollector(self._speaker, manager),
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
        except _TasksLoaded as ended:
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
        return request_corpus(text_requests(instances))

    def identity(self) -> dict[str, Any]:
        return self._prompting.to_json() | {"lm_eval": version("lm_eval")}

    def section(
        self, folder: Path, corpus: RequestCorpus, planned: PlannedCorpus, scores: Scores
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

    def _judged(
        self, keys: list[Key], logprob: np.ndarray, is_greedy: np.ndarray
    ) -> HarnessResults:
        """The harness's results of these answers."""
        found = zip(logprob.tolist(), is_greedy.tolist(), strict=True)
        answers = dict(zip(keys, found, strict=True))
        random.seed(_RANDOM_SEED)
        np.random.seed(_OTHER_SEED)
        for task in self._tasks.values():
            task.set_fewshot_seed(seed=_OTHER_SEED)
        knower = _AnsweringModel(self._speaker, answers)
        with _apart(quiet=self._quiet), _one_process(), self._rendering():
            results = evaluator.evaluate(
                knower, self._loaded, log_samples=True, **self._arguments()
            )
        assert results is not None
        return HarnessResults(results)

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
    """The source of a task's questions, and the fingerprints of their splits."""
    splits = task.dataset if isinstance(task.dataset, Mapping) else {}
    prints = {str(name): getattr(split, "_fingerprint", None) for name, split in splits.items()}
    return {
        "path": None if task.DATASET_PATH is None else str(task.DATASET_PATH),
        "name": None if task.DATASET_NAME is None else str(task.DATASET_NAME),
        "fingerprints": {name: text for name, text in prints.items() if text is not None},
    }


def check_folder(folder: Path) -> None:
    """Raises UsageError for the first thing in a folder's YAML files that runs code."""
    waiting, seen = sorted(folder.rglob("*.yaml")), set[Path]()
    while waiting:
        file = waiting.pop(0).resolve()
        if file in seen or file.is_relative_to(_OWN):
            continue
        seen.add(file)
        waiting += _included(file)


def _included(file: Path) -> Iterator[Path]:
    """The files that a YAML file includes. Raises UsageError for code in it."""
    try:
        root = yaml.compose(read_regular(file, MOST_JSON), Loader=_LOADER)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: is not YAML: {words_of(error, named=False)}") from None
    # A list, since anchors may make a circle, and nesting may be deep.
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if node.tag == "!function" or ":python/" in node.tag:
            raise _refusal(file, node, f"{node.tag} {node.value}" if _is_text(node) else node.tag)
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            waiting += [key, value]
            if key.value == "metric" and _is_text(value) and value.value not in metric_registry:
                raise _refusal(file, value, f"the metric {value.value}, a program of HF Evaluate's")
            if key.value == "hf_evaluate":
                raise _refusal(file, key, "hf_evaluate, which takes a metric from HF Evaluate")
    yield from (file.parent / name for name in _names_included(root))


def _names_included(root: Any) -> Iterator[str]:
    """The names in `include`, in a file's own mapping and in those that `<<` merges into it."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.tag == "tag:yaml.org,2002:merge":
                waiting.append(value)
            elif key.value == "include":
                names = value.value if isinstance(value, yaml.SequenceNode) else [value]
                yield from (str(name.value) for name in names)


def _is_text(node: Any) -> bool:
    return isinstance(node, yaml.ScalarNode)


def _refusal(file: Path, node: Any, what: str) -> UsageError:
    return UsageError(
        f"--include-path: {file}, line {node.start_mark.line + 1}: {what[:200]}: runs Python code: "
        "read it, then allow it with --confirm-run-unsafe-code"
    )


@contextmanager
def sandboxed() -> Iterator[None]:
    """Has the harness render templates in Jinja's sandbox for as long as the block lasts."""
    before = utils.env
    made = jinja2.sandbox.SandboxedEnvironment(
        loader=before.loader, undefined=before.undefined, keep_trailing_newline=True
    )
    made.filters |= before.filters
    utils.env = made
    try:
        yield
    finally:
        utils.env = before

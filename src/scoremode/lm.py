"""scoremode as a model of lm-evaluation-harness: `--model scoremode`, or an object for its functions.

    from lm_eval import simple_evaluate
    from scoremode.lm import ScoremodeLM

    simple_evaluate(model=ScoremodeLM("org/model"), tasks=["arc_easy"])

Importing this module registers the name `scoremode`; releases that read the entry points of
`lm_eval.models` do so by themselves. It needs the extra `lm-eval`.
"""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]

from scoremode.checkpoint.model_files import resolve_model, tokenizer_places
from scoremode.cli.tasks import Tasks, request_for
from scoremode.errors import UsageError
from scoremode.harness.chat import ChatPrompts
from scoremode.harness.requests import ChatLM, Key, key_of, text_requests
from scoremode.text.task_requests import request_corpus

__all__ = ["ScoremodeLM"]


@register_model("scoremode")
class ScoremodeLM(ChatLM):
    """A model whose log-likelihoods scoremode measures, all requests of a call in one run.

    - `pretrained`: a folder, a GGUF file or a hub id; `max_length`: tokens that it reads at a time, its
      number of positions by default.
    - `output_path`: a folder that keeps the runs; without one they are gone when a call is answered.
    - `flags`: those of `scoremode tasks` that name an engine, a device or a way to compute, such as
      `engine="vllm"`, `dtype="float32"`, `tokenizer=…`, `revision=…`.

    The harness's own `batch_size` and `max_batch_size` change nothing: the engine groups windows by its
    memory. Raises UsageError for a flag that there is not; a call raises what a measurement does.
    """

    def __init__(
        self,
        pretrained: str | Path,
        *,
        max_length: int | None = None,
        output_path: str | Path | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        **flags: Any,
    ):
        self._spec = Tasks.of(
            model=str(pretrained), tasks="lm-eval", context_length=max_length, **flags
        )
        if self._spec.reference is not None:
            raise UsageError("reference: scoremode tasks compares with a base, and no model alone")
        files = resolve_model(pretrained, self._spec.revision)
        self._places = tokenizer_places(self._spec.tokenizer, files)
        super().__init__(ChatPrompts(self._places))
        self._output = None if output_path is None else Path(output_path)

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        answers = self._answers(requests) if requests else {}
        found = [answers[key_of(request)] for request in requests]
        for request, answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return found

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        answers = self._answers(requests) if requests else {}
        found = [answers[key_of(request)][0] for request in requests]
        for request, answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, answer)
        return found

    def _answers(self, requests: Sequence[Any]) -> dict[Key, tuple[float, bool]]:
        """All of them measured in one run, which goes on where a killed one was."""
        from scoremode.cli.command import measured
        from scoremode.cli.main import settle_imports
        from scoremode.cli.screen import shown
        from scoremode.results.folders.tables import REQUESTS, read_table

        corpus = request_corpus(text_requests(requests))
        with ExitStack() as ending:
            spec = self._spec.but(
                output=self._output or Path(ending.enter_context(tempfile.TemporaryDirectory())),
                resume="if-there" if self._output else False,
            )
            ending.callback(settle_imports)
            command = ("scoremode", *spec.words())
            session = ending.enter_context(shown(command, hidden=spec.quiet, before=0.0))
            result = measured(request_for(spec, session, corpus, self._places), session)
            file = result.record.requests
            assert file
            found = read_table(result.folder / REQUESTS, file)
        texts = zip(found["context"], found["continuation"], strict=True)
        answers = zip(found["logprob"], found["is_greedy"], strict=True)
        return dict(zip(texts, answers, strict=True))

"""Sections of a run's record, computed from its parts on disk."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scoremode.checkpoint.gguf.names import is_gguf
from scoremode.checkpoint.tokenizer import (
    checkpoint_tokenizer,
    compare_tokens,
    difference_lines,
    has_tokenizer,
)
from scoremode.errors import InvalidMeasurement, TokenizerError
from scoremode.lib.tasks import Task
from scoremode.results.folders.store import SCORES, TOKEN_TEXT, Columns, RunFolder, read_columns
from scoremode.results.folders.tables import LABEL, answers_of, write_requests
from scoremode.results.record.checks import stopping
from scoremode.results.record.sections import sections
from scoremode.results.scores import Scores
from scoremode.results.statistics.blocks import CONVERSATION
from scoremode.results.statistics.bootstrap import pages_section
from scoremode.results.statistics.divergence import worst_tokens
from scoremode.runs.context import RunContext
from scoremode.text.calibration import Overlap
from scoremode.text.conversations.corpus import Conversations
from scoremode.text.kept_text import KeptText
from scoremode.text.plan import Plan
from scoremode.text.task_requests import PlannedCorpus, RequestCorpus, detokenized
from scoremode.text.token_class import TokenTable, token_table
from scoremode.text.tokenizer import Tokenizer, difference


def auto_tokenizer_task(context: RunContext) -> Task[dict[str, Any] | None]:
    """AutoTokenizer's ids of the text, compared while it is scored; the user is told of any difference.

    None for conversations and requests, which are many texts, for a tokenizer.json given by itself,
    which AutoTokenizer doesn't take, for a GGUF file, which it reads in ways of its own, and for a kept
    text that its token ids don't spell, as with a tokenizer that lowers its case.

    The user is told as well where the tokenizer in the model's GGUF file differs from one given.
    """

    def work() -> dict[str, Any] | None:
        tokenizer, protocol = context.planned.tokenizer, context.plan.protocol
        corpus = context.request.corpus
        alone = Path(tokenizer.source).is_file()
        overruled = context.request.tokenizer is not None and is_gguf(context.checkpoint.path)
        if (alone and not overruled) or isinstance(corpus, Conversations | RequestCorpus):
            return None
        kept = isinstance(corpus, KeptText)
        if protocol.text == "pages":
            text = "\n".join(map(detokenized, corpus.texts("pages")))
        else:
            text = corpus.spelled(tokenizer) if kept else corpus.text(protocol.text)
        if text is None:
            return None
        if overruled and has_tokenizer(context.checkpoint.path):
            context.notify(_own_tokenizer(context, text))
        if alone:
            return None
        found = compare_tokens(tokenizer, text)
        read = int(context.plan.stop.max())
        for line in difference_lines(found, tokenizer, protocol, read):
            context.notify(line)
        return found

    return Task(work)


def _own_tokenizer(context: RunContext, text: str) -> str:
    """A line that compares the tokenizer in the model's GGUF file with the one that overrules it."""
    given, file = context.planned.tokenizer, str(context.checkpoint.path)
    try:
        own = checkpoint_tokenizer(file)
        ids, others = (t.encode(text, special_tokens=True) for t in (given, own))
    except TokenizerError as error:
        return f"{given.source}'s ids weren't compared with {file}'s: {error}"
    if words := difference(given, ids, own, others):
        return (
            f"{given.source} reads this text otherwise than {file}, whose tokenizer it overrules: "
            f"{words}"
        )
    return f"{given.source} reads this text as {file} does"


def token_table_task(tokenizer: Tokenizer) -> Task[TokenTable]:
    """The table of tokens, made while the scores are; Arrow, which writes them, is made ready first."""

    def work() -> TokenTable:
        import pyarrow as pa
        import pyarrow.parquet

        # The first array of numpy's makes Arrow import pandas, where there is one.
        pa.table({"": np.zeros(1)})
        return token_table(tokenizer)

    return Task(work)


def overlap_task(context: RunContext) -> Task[Overlap | None]:
    """The calibration text, looked for in the scored one while that is scored; None without one."""

    def work() -> Overlap | None:
        given = context.request.calibration
        return None if given is None else given.looked_for(context.plan, context.planned.tokenizer)

    return Task(work)


def check_texts(tokenizer: Tokenizer) -> None:
    """Raises TokenizerError where the tokenizer doesn't tell the texts that were asked for."""
    try:
        token_table(tokenizer)
    except TokenizerError as error:
        raise TokenizerError(f"--token-text: {error}") from None


def finished_sections(
    context: RunContext,
    plan: Plan,
    folder: RunFolder,
    parts: Iterable[Scores],
    table_made: Task[TokenTable],
    record: Mapping[str, Any],
    shard_targets: int | None = None,
) -> dict[str, Any]:
    """Merges `parts`, which are those of `plan`, to `scores.parquet` and computes all that follows.

    - `record`: all that is known of the run by now.
    - `shard_targets`: how many targets of the plan a shard has; None of a whole run. No metric of a
      shard would be the text's, so none is computed.

    Raises InvalidMeasurement where a score is missing or a mean is not finite.
    """
    targets = plan.scored if shard_targets is None else shard_targets
    made, scores, extras = _written(context, plan, folder, parts, table_made, targets)
    if shard_targets is not None:
        return made
    block = plan.protocol.context_length
    assert block is not None
    known = {**record, **made}
    made |= sections(scores, block, extras, confident=context.request.confident, record=known)
    if (judge := context.request.judge) is not None:
        corpus, asked = context.request.corpus, context.planned.asked
        assert isinstance(corpus, RequestCorpus) and asked is not None
        made["tasks"] = judge.section(folder.path, corpus, asked, scores)
    rule, drawn = plan.protocol, plan.planned or plan
    if rule.stop_when is not None and rule.seed is not None:
        windows, conversations = len(drawn), drawn.counts_json().get("conversations")
        made["stopping"] = stopping(
            scores, rule.stop_when, rule.seed, windows, conversations, extras
        )
    return made


def _written(
    context: RunContext,
    plan: Plan,
    folder: RunFolder,
    parts: Iterable[Scores],
    table_made: Task[TokenTable],
    targets: int,
) -> tuple[dict[str, Any], Scores, Columns]:
    """Writes `parts` to `scores.parquet`; returns the record's sections about the file and its worst
    tokens, and the columns that the disk gives back. Raises InvalidMeasurement for others than so many
    `targets`."""
    table = None
    try:
        table = table_made.result()
    except TokenizerError as error:
        context.notify(f"no bits per byte, and no kinds of tokens: {error}")
    sha256 = folder.merge(parts, _extra_columns(plan, table, texts=context.request.token_text))
    # Read as it will be read from now on: what the disk gives back is what was measured.
    scores, extras = read_columns(folder.path / SCORES, sha256, targets)
    if len(scores) != targets:
        raise InvalidMeasurement(f"{len(scores)} scores on disk for {targets} targets")
    made: dict[str, Any] = {"scores": {"name": SCORES, "rows": len(scores), "sha256": sha256}}
    if context.request.token_text:
        made["scores"]["token_text"] = True
    asked = context.planned.asked
    if asked is not None and len(scores) == plan.scored:
        answers = answers_of(scores, asked.window, asked.begin)
        made["requests"] = write_requests(folder.path, asked, answers)
        made["requests"]["prefix"] = _prefix(asked, context.planned.tokenizer)
        if asked.sizes is not None:
            words, byte_counts = asked.sizes.T
            own, base = answers.logprob, answers.base_logprob
            made["pages"] = pages_section(words, byte_counts, own, base)
    if scores.against is not None:
        made["worst"] = worst_tokens(scores, scores.against, plan=plan, table=table)
    return made, scores, extras


def _prefix(asked: PlannedCorpus, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """The token that stands before what nothing precedes, and what it is to the tokenizer."""
    if (id_ := asked.prefix) is None:
        return None
    is_bos = id_ == tokenizer.bos
    return {
        "id": id_,
        "token": tokenizer.backend.id_to_token(id_),
        "is": "BOS" if is_bos else "EOS",
    }


def _extra_columns(
    plan: Plan, table: TokenTable | None, *, texts: bool
) -> Callable[[Scores], dict[str, np.ndarray]]:
    """Columns beside a part's Scores: weights, the kind and bytes of each target's text, and the text
    itself where `texts` asks for it."""
    weights = plan.weights()

    def extra(part: Scores) -> dict[str, np.ndarray]:
        columns: dict[str, np.ndarray] = {}
        if weights is not None:
            columns["weight"] = weights[part.window]
        if plan.conversation is not None:
            columns[CONVERSATION] = plan.conversation[part.window]
        if plan.labels is not None:
            columns[LABEL] = plan.labels.at(part.index)
        if plan.turn_place is not None:
            columns["turn_place"] = plan.turn_place[part.index]
        if table is not None:
            columns["token_class"] = table.classes[part.target]
            columns["token_bytes"] = table.byte_counts[part.target]
        if texts:
            # Without a table the run would not have begun.
            assert table is not None
            columns[TOKEN_TEXT] = table.texts(part.target)
        return columns

    return extra

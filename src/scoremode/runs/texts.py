"""Texts as flags name them, those of a command as those of a record: read here for both."""

import os.path
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scoremode.errors import UsageError
from scoremode.spec.text import Calibration, Text, names_file
from scoremode.text import calibration, corpus, hub, presets
from scoremode.text.conversations import corpus as conversations
from scoremode.text.conversations.template import DATE

# Called with what is about to be read from the hub.
Reads = Callable[[str], None]


def read_text(spec: Text, reads: Reads = lambda _: None) -> corpus.Corpus:
    """The text that the flags name, all rows of it. Raises UsageError, CorpusError."""
    if spec.preset is not None:
        text = presets.named_text(spec.preset)
        if spec.dataset_file is None:
            reads(f"data set {text.repo}")
        return presets.load_text(
            text,
            file=spec.dataset_file,
            revision=spec.dataset_revision,
            group_by=spec.group_by,
            how=_conversation_fields(spec) if text.text_field is None else None,
        )
    if (name := spec.conversations) is not None:
        how = _conversation_fields(spec)
        if names_file(name):
            return conversations.from_conversations_file(Path(name), **how)
        reads(f"data set {name}")
        config, split = spec.dataset_config, spec.split or "test"
        return conversations.from_conversations_hub(
            name, config, split=split, revision=spec.dataset_revision, **how
        )
    if spec.text is not None:
        # Taken for a text, a file's name would be scored in its place: nine bytes of "wiki.test".
        # Unlike a Path's method, this bears a text longer than a name can be.
        if os.path.isfile(spec.text):  # noqa: PTH113
            raise UsageError(f"--text {spec.text}: is a file: give it with -f {spec.text}")
        return corpus.from_string(spec.text)
    if spec.file is not None:
        return corpus.from_files(spec.file, spec.group_by)
    field = spec.text_field or "text"
    if spec.dataset_file is not None:
        return corpus.from_dataset_file(spec.dataset_file, field, spec.group_by)
    dataset, config = spec.dataset or "wikitext", spec.dataset_config
    if config is None and dataset in ("wikitext", "Salesforce/wikitext"):
        config = "wikitext-2-raw-v1"
    reads(f"data set {dataset}")
    return hub.from_hub(
        dataset,
        config,
        split=spec.split or "test",
        text_field=field,
        revision=spec.dataset_revision,
        group_by=spec.group_by,
    )


def _conversation_fields(spec: Text) -> dict[str, Any]:
    """The settings of conversations, apart from their source. Raises UsageError."""
    if (spec.skip_bad_rows or 0) < 0:
        raise UsageError(f"--skip-bad-rows {spec.skip_bad_rows}: must be at least 0")
    return {
        "template": spec.chat_template,
        "arguments": spec.chat_template_kwargs or {},
        "date": spec.chat_date or DATE,
        "group_by": spec.group_by,
        "skip_bad_rows": spec.skip_bad_rows or 0,
    }


def read_calibration(
    spec: Calibration, reads: Reads = lambda _: None
) -> calibration.Calibration | None:
    """The calibration text that the flags name, None where they name none. Raises CorpusError."""
    if (name := spec.calibration) is None:
        return None
    field = spec.calibration_field or "text"
    if names_file(name):
        return calibration.calibration_of_file(Path(name), field)
    reads(f"data set {name}")
    return calibration.calibration_of_hub(
        name,
        spec.calibration_config,
        split=spec.calibration_split or "train",
        revision=spec.calibration_revision,
        text_field=field,
    )

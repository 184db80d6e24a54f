"""Named texts: which rows of which files, how they are joined, and what proves a copy of them.

Every revision is a commit of the hub's repository. Where the hash of the rows or of the file is known
as well, a copy that differs is refused, wherever it lies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from scoremode.errors import CorpusError, UsageError
from scoremode.text.conversations.corpus import (
    BadRow,
    Conversations,
    from_conversations_file,
    from_conversations_hub,
)
from scoremode.text.conversations.messages import Conversation
from scoremode.text.corpus import WIKITEXT2_NAME, WIKITEXT2_RAW_SHA256, Corpus, from_dataset_file
from scoremode.text.hub import from_hub

__all__ = ["TEXTS", "NamedText", "load_text", "named_text"]

_WIKITEXT_COMMIT = "b08601e04326c79dfdd32d625aee71d232d685c3"
_WIKITEXT_LICENCE = "CC BY-SA 3.0, GFDL"
_LANGUAGES = ("arb_Arab", "cmn_Hans", "eng_Latn", "hin_Deva", "jpn_Jpan", "rus_Cyrl", "spa_Latn",
              "swh_Latn", "tur_Latn", "yor_Latn")  # fmt: skip


@dataclass(frozen=True)
class NamedText:
    """A text that has a name.

    - `repo`, `revision`, `files`: where it lies on the hub.
    - `text_field`: the field of its rows that is scored, None for conversations.
    - `rows`: how many of the files' rows it has, the first ones; None for all, which are `all_rows`
      where their number is known.
    - `separator`: what joins rows, as long as the protocol joins any.
    - `group_by`: the field that its rows are grouped by, None for no groups.
    - `file_sha256`: of its one file; `rows_sha256`: of its rows put back into a raw file. None where
      it isn't known.
    """

    name: str
    what: str
    repo: str
    revision: str
    files: tuple[str, ...]
    licence: str
    text_field: str | None = "text"
    rows: int | None = None
    all_rows: int | None = None
    separator: str = "\n\n"
    group_by: str | None = None
    file_sha256: str | None = None
    rows_sha256: str | None = None


def _wikitext_103(part: int, file_sha256: str) -> NamedText:
    return NamedText(
        f"wikitext-103-{part}",
        f"first 10,000 rows of file {part} of 2 of WikiText-103's training split",
        "Salesforce/wikitext",
        _WIKITEXT_COMMIT,
        (f"wikitext-103-raw-v1/train-0000{part - 1}-of-00002.parquet",),
        _WIKITEXT_LICENCE,
        rows=10_000,
        file_sha256=file_sha256,
    )


TEXTS: Mapping[str, NamedText] = {
    text.name: text
    for text in (
        NamedText(
            "wikitext-2",
            "WikiText-2's raw test split, the text of a run that names none",
            "Salesforce/wikitext",
            _WIKITEXT_COMMIT,
            ("wikitext-2-raw-v1/test-00000-of-00001.parquet",),
            _WIKITEXT_LICENCE,
            rows_sha256=WIKITEXT2_RAW_SHA256,
        ),
        _wikitext_103(1, "74da360f23826045b3e6ac6375411fdb15f003030aa74f2596ed08b857cb9212"),
        _wikitext_103(2, "ba090ac30dbf5461e8dcbdd1a1b8e6f3cf9c2c756d64f0c1220450acd514f720"),
        NamedText(
            "c4-gptq",
            "first 1,100 documents of C4's validation split, joined by a space",
            "allenai/c4",
            "1588ec454efa1a09f29cd18ddd04fe05fc8653a2",
            ("en/c4-validation.00000-of-00008.json.gz",),
            "ODC-BY",
            rows=1100,
            separator=" ",
        ),
        NamedText(
            "mbpp",
            "solutions of MBPP's 500 test problems, in Python",
            "google-research-datasets/mbpp",
            "4bb6404fdc6cacfda99d4ac4205087b89d32030c",
            ("full/test-00000-of-00001.parquet",),
            "CC BY 4.0",
            text_field="code",
            all_rows=500,
        ),
        NamedText(
            "flores",
            "FLORES+, devtest: the same 1,012 sentences in ten languages, a group each",
            "openlanguagedata/flores_plus",
            "5fec6c13f9e5a4db2f745d4ec0d7c9721ddc4f06",
            tuple(f"devtest/{language}.jsonl" for language in _LANGUAGES),
            "CC BY-SA 4.0",
            all_rows=10 * 1012,
            group_by="iso_639_3",
        ),
        NamedText(
            "smoltalk",
            "first 512 conversations of SmolTalk's test split, grouped by source",
            "HuggingFaceTB/smoltalk",
            "5feaf2fd3ffca7c237fc38d1861bc30365d48ffa",
            ("data/all/test-00000-of-00001.parquet",),
            "Apache 2.0, and its sources'",
            text_field=None,
            rows=512,
            group_by="source",
        ),
    )
}


def named_text(name: str) -> NamedText:
    """The text of that name. Raises UsageError."""
    try:
        return TEXTS[name]
    except KeyError:
        raise UsageError(
            f"--preset {name}: no text has that name: one of {', '.join(TEXTS)}"
        ) from None


def load_text(
    text: NamedText,
    *,
    file: Path | None = None,
    revision: str | None = None,
    group_by: str | None = None,
    how: Mapping[str, Any] | None = None,
) -> Corpus:
    """A named text, from the hub or from a local copy of its `file`.

    - `revision`: in place of the text's own; `group_by`: likewise.
    - `how`: further fields of conversations.

    Raises CorpusError, also for a copy that isn't the text.
    """
    by = group_by or text.group_by
    commit = revision or text.revision
    if text.text_field is None:
        fields = {**(how or {}), "group_by": by}
        found = (
            from_conversations_hub(
                text.repo, None, split="", revision=commit, files=text.files, **fields
            )
            if file is None
            else from_conversations_file(file, **fields)
        )
    elif file is None:
        found = from_hub(
            text.repo, split="", text_field=text.text_field, revision=commit, group_by=by,
            files=text.files,
        )  # fmt: skip
    else:
        found = from_dataset_file(file, text.text_field, by)
    _check(text, found)
    name = WIKITEXT2_NAME if found.form == "wikitext" else text.name
    known = replace(found, name=name, preset=text.name, separator=text.separator)
    if isinstance(known, Conversations):
        held = f"{text.repo}/{text.files[0]}" if file is None else file.name
        chats = known.chats[: text.rows]
        return replace(known, chats=tuple(_called(chat, held, text.name) for chat in chats))
    return replace(known, rows=known.rows[: text.rows], labels=known.labels[: text.rows])


def _called(chat: Conversation | BadRow, held: str, name: str) -> Conversation | BadRow:
    """A row with the text's name in place of that of the file `held`: errors are the same wherever a
    copy lies."""
    if isinstance(chat, BadRow):
        return BadRow(name + chat.line.removeprefix(held))
    return replace(chat, where=name + chat.where.removeprefix(held))


def _check(text: NamedText, found: Corpus) -> None:
    """Raises CorpusError for rows that aren't those of the text: of another hash or number, or known to
    be another text's."""
    rows = len(found.chats) if isinstance(found, Conversations) else len(found.rows)
    wrong = None
    if text.rows_sha256 is not None:
        raw = "".join(row or " \n" for row in found.rows).encode()
        if (made := sha256(raw).hexdigest()) != text.rows_sha256:
            wrong = f"its rows' sha256 is {made[:12]}…, not {text.rows_sha256[:12]}…"
    elif text.file_sha256 is not None:
        if (made := found.source_sha256) != text.file_sha256:
            wrong = f"its sha256 is {made[:12]}…, not {text.file_sha256[:12]}…"
    elif found.form == "wikitext":
        wrong = "its rows are WikiText-2's"
    elif other := next((t for t in TEXTS.values() if t.file_sha256 == found.source_sha256), None):
        wrong = f"it is the file of {other.name}"
    elif text.rows is not None and rows < text.rows:
        wrong = f"it has {rows:,} rows, and the text is of {text.rows:,}"
    elif text.all_rows is not None and rows != text.all_rows:
        wrong = f"it has {rows:,} rows, and the text {text.all_rows:,}"
    if wrong is not None:
        raise CorpusError(f"{found.source}: is not the text {text.name}: {wrong}")

"""The record of generated conversations: what said them, and how many ended as what.

Written beside the output; `text.conversations.generated` reads it for a run that scores them.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.checkpoint.bulk_io import hash_file
from scoremode.checkpoint.files import Checkpoint
from scoremode.lib.files import MOST_JSON, read_regular
from scoremode.lib.json import json_text
from scoremode.results.record.sections import now
from scoremode.runs.generation.replies import Replying
from scoremode.text.conversations.corpus import KIND, record_path

if TYPE_CHECKING:
    from scoremode.runs.generation.generate import Generation

__all__ = ["counts_of", "finished_record", "record_of", "record_text"]


def record_of(
    wanted: "Generation", checkpoint: Checkpoint, replying: Replying, identity: dict[str, Any]
) -> dict[str, Any]:
    """The record but for what follows from the replies."""
    return {
        "kind": KIND,
        "schema_version": 1,
        "command": list(wanted.command),
        "base": {
            "source": checkpoint.source,
            "fingerprint": checkpoint.fingerprint,
            "files": identity["files"],
        },
        "tokenizer": replying.tokenizer.to_json(),
        "template": replying.template.to_json(),
        "ends": identity["ends"],
        "prompts": wanted.prompts.to_json(),
        "sampling": identity["sampling"],
        "inexact": identity["inexact"],
        "engine": identity["engine"],
        "versions": identity["versions"],
        "identity": identity,
        "begun": now(),
    }


def record_text(
    record: Mapping[str, Any],
    output: Path,
    text: str,
    written: Sequence[Mapping[str, Any]],
    engine: Mapping[str, Any],
) -> str:
    """The whole record as JSON; `text`: the output's, `written`: all replies, those left out too."""
    data = text.encode()
    whole = {
        **record,
        "engine": {**record["engine"], **engine},
        "finished": now(),
        "counts": counts_of(written),
        "inexact_replies": [
            [row["generated"]["prompt"], row["generated"]["sample"]]
            for row in (one["row"] for one in written)
            if not row["generated"]["exact"]
        ],
        "output": {
            "name": output.name,
            "bytes": len(data),
            "sha256": sha256(data).hexdigest(),
        },
    }
    return json_text(whole)


def counts_of(written: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Replies, and how many of them `ended` their turn or were `cut`, are `exact` or `inexact`, were
    `left_out`, `respelled` (exact by their `generated_ids`), and have the form of a pair of `texts`;
    all `tokens` that were generated."""
    rows = [one["row"] for one in written]
    ends = Counter(row["finish_reason"] for row in rows)
    exact = sum(row["generated"]["exact"] for row in rows)
    return {
        "replies": len(rows),
        "written": sum(one["kept"] for one in written),
        "left_out": sum(not one["kept"] for one in written),
        "ended": ends["stop"],
        "cut": ends["length"],
        "exact": exact,
        "respelled": sum(row["generated"]["exact"] and "generated_ids" in row for row in rows),
        "inexact": len(rows) - exact,
        "texts": sum(one["form"] == "text" for one in written),
        "tokens": sum(row["generated"]["tokens"] for row in rows),
    }


def finished_record(output: Path) -> dict[str, Any] | None:
    """The record of a file that is as its record says; None for any other file.

    Raises OSError where the record can't be read for another reason than not being there.
    """
    file = record_path(output)
    try:
        record = json.loads(read_regular(file, MOST_JSON))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("kind") != KIND or "identity" not in record:
        return None
    said = record.get("output")
    if not isinstance(said, dict) or said.get("sha256") != hash_file(output):
        return None
    return record

"""Campaign `resealed`: a record's value is another, all hashes are made anew, and `check` is asked.

It must say that something is wrong, or list the field as one that nothing holds.
"""

import json
from pathlib import Path
from random import Random

from support.forged_runs import wrong
from support.resealed_records import edited, fields_of, is_open
from torture.command import Failure
from torture.world import World

from scoremode.errors import RunFolderError
from scoremode.results.folders.store import RECORD, read_record, read_scores
from scoremode.runs.check.check import check

__all__ = ["case"]


def case(random: Random, world: World, folder: Path) -> str:
    """Edits one field of a finished run; returns what was done. Raises Failure."""
    name = random.choice(["ppl", "kld", "kld-beside", "reference"])
    run = world.copied(name, folder / "run")
    record = read_record(run)
    fields = fields_of(record)
    # Every section as often as any other, however long it is.
    section = random.choice(sorted({name.split(".")[0] for name in fields}))
    field = random.choice([name for name in fields if name.split(".")[0] == section])
    other = edited(record, fields[field], read_scores(run))
    if other is None:
        return f"{field}: takes no other value"
    (run / RECORD).write_text(json.dumps(other), encoding="utf-8")
    try:
        found = wrong(check([run]))
    except RunFolderError as error:
        return f"{field}: {error}"
    if not found and not is_open(field, record):
        raise Failure(f"{field} of {name} is another, and check finds nothing wrong")
    return f"{field}: {next(iter(found), 'not checked')}"

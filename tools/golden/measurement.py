"""One measurement: a command, and what is hashed of it."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from commands import Failed, kill_in_mid_run, run, succeed
from digests import parts_of_output, parts_of_run, steady, steady_text

# In the work folder.
RUNS = Path("runs")
PARTS = ("scores", "metrics", "record", "identity", "files", "printed")


@dataclass(frozen=True)
class Measurement:
    """One command, in the work folder.

    - `words`: of the command; `run:NAME` stands for the folder of that measurement's run.
    - `needs`: further measurements that must have run, beside those of `run:NAME`.
    - `output`: where its runs go, one or several; None for a command whose output is hashed alone.
    - `exports`: further files that it writes.
    - `is_killed`: it is ended by SIGKILL in mid-run, and then resumed.
    - `library`: one without which it is skipped.
    - `cores`: without so many it is skipped.
    """

    name: str
    words: tuple[str, ...]
    needs: tuple[str, ...] = ()
    output: Path | None = None
    exports: tuple[str, ...] = ()
    is_killed: bool = False
    library: str | None = None
    cores: int = 1

    @property
    def needed(self) -> set[str]:
        runs = (w.removeprefix("run:") for w in self.words if w.startswith("run:"))
        return {*self.needs, *runs}

    def measure(self) -> dict[str, Any]:
        """Name of a line → what it is the hash of, or why there is none. Raises Failed."""
        if self.library and find_spec(self.library) is None:
            return {self.name: f"skipped: no {self.library}"}
        if (os.cpu_count() or 1) < self.cores:
            return {self.name: f"skipped: fewer than {self.cores} cores"}
        words = [self._resolved(word) for word in self.words]
        exports = [Path(name) for name in self.exports]
        if self.output is None:
            printed = run(words)
            if printed.code == 1 and "Traceback" in printed.err:
                raise Failed(printed.err[-600:])
            texts = {file.name: text_of(file) for file in exports}
            return {self.name: parts_of_output(printed, texts)}
        words += ["-o", str(self.output)]
        if self.is_killed:
            kill_in_mid_run(words, self.output)
            words.append("--resume")
        values: dict[str, Any] = {f"{self.name}/printed": {"stdout": steady_text(succeed(words))}}
        folders = runs_in(self.output)
        for name, folder in folders.items():
            where = self.name if len(folders) == 1 else f"{self.name}/{name}"
            parts = parts_of_run(folder, exports if len(folders) == 1 else ())
            if self.is_killed:
                # How much it did again depends on where it was killed.
                del parts["record"]["engine"]
            values |= {f"{where}/{part}": fields for part, fields in parts.items() if fields}
        return values

    def _resolved(self, word: str) -> str:
        if not word.startswith("run:"):
            return word
        (folder,) = runs_in(RUNS / word.removeprefix("run:")).values()
        return str(folder)


def runs_in(output: Path) -> dict[str, Path]:
    """Name of a model (with a number where there are several runs of it) → folder. Raises Failed."""
    found: dict[str, Path] = {}
    records = {path: json.loads(path.read_text("utf-8")) for path in output.glob("**/record.json")}
    for path in sorted(records, key=lambda p: _order(p.parent, records[p])):
        model = Path(records[path]["checkpoint"]["source"]).name
        same = sum(name.partition("#")[0] == model for name in found)
        found[f"{model}#{same + 1}" if same else model] = path.parent
    if not found:
        raise Failed(f"{output}: has no run")
    return found


def _order(folder: Path, record: dict[str, Any]) -> list[str]:
    """An order of runs that is the same each time; two of one result are told by their files."""
    kind = "run" if "reference" in record else "base"
    metrics = json.dumps(record.get("metrics"), sort_keys=True)
    return [kind, record["plan"]["sha256"], metrics, *sorted(f.name for f in folder.iterdir())]


def text_of(file: Path) -> str:
    """A text that was written; of a report its data, and its markup without scripts and styles."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".html":
        return text
    data = re.findall(r"<script[^>]*application/json[^>]*>(.*?)</script>", text, re.DOTALL)
    values = [json.dumps(steady(json.loads(block)), indent=1, ensure_ascii=False) for block in data]
    markup = re.sub(r"<(script|style)\b.*?</\1>", r"<\1/>", text, flags=re.DOTALL)
    return "\n".join([*values, markup.replace("><", ">\n<")])

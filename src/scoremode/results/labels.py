"""Labels: what tables, charts and lines call a model. Every place that names one takes its label here.

A label is the one that the user gave (`--label`). Without one it is what a person would say: a folder's
name, a hub repository's without its owner, a GGUF file's without `.gguf` and a split's number. A name
that says nothing (`model`, a snapshot's hash, `.`) is that of the folder around it.

Several models that are shown together need labels that differ, and short ones:

- In the table of a base, a name that begins with the base's loses that: beside SmolLM2-135M, the file
  SmolLM2-135M-Q4_K_M.gguf is Q4_K_M. The base keeps its whole name, so it can be put together again.
- Two models of one name have the nearest thing that tells them apart in brackets, `Q4_K_M (bartowski)`;
  two runs of one model the format of their KV cache, or the run's folder.
- A given label is never shortened.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from scoremode.lib.hub import on_hub

if TYPE_CHECKING:
    from scoremode.results.folders.finished import FinishedRun
    from scoremode.results.record.definition import Record
    from scoremode.results.record.model import Reference

__all__ = ["Named", "base_of", "label_of", "labels_of", "labels_of_runs", "model_of"]

# Names of folders and files that say nothing of the model in them.
_NOTHING = re.compile(
    r"models?|checkpoints?|weights|snapshots?|outputs?|final|hf|gguf|safetensors|\.{0,2}|/|[0-9a-f]{40}",
    re.IGNORECASE,
)
_SPLIT = re.compile(r"-\d{5}-of-\d{5}$")
# A repository of the hub as a user names it, and which of its GGUF files.
_ON_HUB = re.compile(r"[\w.-]+/[\w.-]+:[^:]+")
_DTYPE = re.compile(r"[-_.](bf16|fp?16|fp?32)$", re.IGNORECASE)
_COMMIT = 7
# Behind the name of the base; of 3.1 the 3 is none.
_BEHIND = re.compile(r"[-_ ]|\.(?!\d)")


@dataclass(frozen=True)
class Named:
    """A model, by what there is to name it by.

    - `source`: its name in a record, or as the user typed it; `path`: where it lies, "" where that
      isn't known.
    - `label`: the one that the user gave, "" for none.
    """

    source: str
    path: str = ""
    label: str = ""

    @classmethod
    def typed(cls, name: str, label: str = "") -> "Named":
        """The model that a user means by a name."""
        is_here = os.path.exists(name)  # noqa: PTH110  Path.exists raises for a name too long
        return cls(name, os.path.abspath(name) if is_here else "", label)  # noqa: PTH100

    @property
    def parts(self) -> list[str]:
        """Its name, and then what it lies in, the nearest first; what says nothing is left out."""
        # What a mixture has from others is a part of its name.
        own, plus, taken = self.source.partition(" + ")
        if (found := on_hub(own)) is not None:
            parts = [*_parts_on_hub(found[0]), found[1][:_COMMIT]]
        elif not self.path and _ON_HUB.fullmatch(own):
            parts = _parts_on_hub(own)
        else:
            same = Path(self.path).name == Path(own).name
            parts = _parts_here(self.path if same else own) or _parts_here(self.path) or [own]
        return [f"{parts[0]}{plus}{taken}", *parts[1:]]

    @property
    def name(self) -> str:
        return self.label or self.parts[0]


def model_of(record: "Record") -> Named:
    """The model that a record is of."""
    checkpoint = record.checkpoint
    return Named(checkpoint.source, checkpoint.path or "", record.label or "")


def base_of(reference: "Reference") -> Named:
    """The base that a run is compared with; of a file of logits that file."""
    # A file of logits has no checkpoint.
    found = reference.checkpoint or reference
    return Named(found.source, found.path or "", reference.label or "")


def label_of(record: "Record") -> str:
    """The label of a run's model, shown alone."""
    return model_of(record).name


def labels_of(
    models: Sequence[Named], base: Named | None = None, beside: Sequence[Named] = ()
) -> list[str]:
    """The labels of `models` in the table of `base`; `beside`: others that are shown with them. Models
    that differ have different ones; equal models have the same one."""
    shown = [*models, *beside, *([] if base is None else [base])]
    known = list(dict.fromkeys(shown))
    names = {model: model.name for model in known}
    if base is not None:
        names = _without_base(names, base)
    found = dict(names)
    for name in names.values():
        same = [model for model in known if names[model] == name]
        if len(same) > 1:
            found |= zip(same, _told_apart(name, same), strict=True)
    return [found[model] for model in models]


def labels_of_runs(
    runs: "Sequence[FinishedRun]",
    are_base: Sequence[bool],
    base: Named | None = None,
    beside: Sequence[Named] = (),
) -> list[str]:
    """A label for each run of a table: its model's, with its KV cache's format where those of one model
    differ by that, and with the run's folder where runs share both.

    `are_base`: which runs are of the base itself, and are called what it is called.
    """
    models = [
        base if base is not None and is_base and not run.record.label else model_of(run.record)
        for run, is_base in zip(runs, are_base, strict=True)
    ]
    plain = labels_of(models, base, beside)
    caches = [run.record.engine.kv_cache_dtype for run in runs]
    kinds = {name: {c for n, c in zip(plain, caches, strict=True) if n == name} for name in plain}
    names = [
        f"{name}, KV {cache}" if cache and len(kinds[name]) > 1 else name
        for name, cache in zip(plain, caches, strict=True)
    ]
    folders = [run.folder.resolve().name for run in runs]
    return [
        f"{name} ({folder if folders.count(folder) == 1 else run.folder})"
        if names.count(name) > 1
        else name
        for name, folder, run in zip(names, folders, runs, strict=True)
    ]


def _parts_on_hub(name: str) -> list[str]:
    """Of `ORG/REPO` the repository first, of `ORG/REPO:FILE` the file. A quant in place of a file
    has its repository's name in front, as its file has with most."""
    repository, _, file = name.partition(":")
    parts = repository.split("/")[::-1]
    if not file:
        return parts
    if file.lower().endswith(".gguf"):
        stem = _stem(PurePosixPath(file).name)
        return parts if _NOTHING.fullmatch(stem) else [stem, *parts]
    return [f"{re.sub(r'[-_.]gguf$', '', parts[0], flags=re.IGNORECASE)}-{file}", *parts]


def _parts_here(path: str) -> list[str]:
    parts = list(Path(path).parts)[::-1]
    if parts and parts[0].lower().endswith(".gguf"):
        parts[0] = _stem(parts[0])
    # In the hub's cache all between the repository's folder and the file is the hub's.
    cached = next((i for i, part in enumerate(parts) if part.startswith("models--")), None)
    if cached is not None:
        repository = parts[cached].removeprefix("models--").split("--")[::-1]
        file = parts[:1] if path.lower().endswith(".gguf") else []
        parts = [*file, *repository, *parts[cached + 1 :]]
    return [part for part in parts if not _NOTHING.fullmatch(part)]


def _stem(file: str) -> str:
    return _SPLIT.sub("", file[: -len(".gguf")])


def _without_base(names: dict[Named, str], base: Named) -> dict[Named, str]:
    """The names of `names` without the base's, where that leaves them different."""
    begin = _DTYPE.sub("", base.parts[0])

    def rest(model: Named, name: str) -> str:
        behind = name[len(begin) :]
        is_of_base = name.lower().startswith(begin.lower()) and _BEHIND.match(behind)
        short = behind.lstrip("-_. ")
        return short if is_of_base and short and not model.label and model != base else name

    short = {model: rest(model, name) for model, name in names.items()}
    whole: dict[str, set[str]] = {}
    for model, name in names.items():
        whole.setdefault(short[model], set()).add(name)
    return {
        model: short[model] if len(whole[short[model]]) == 1 else name
        for model, name in names.items()
    }


def _told_apart(name: str, models: Sequence[Named]) -> list[str]:
    """Labels for models of one name: in brackets the nearest part in which all of them differ."""
    further = [model.parts if model.label else model.parts[1:] for model in models]
    for parts in zip(*further, strict=False):
        if len(set(parts)) == len(parts):
            return [f"{name} ({part})" for part in parts]
    return [f"{name} ({model.source})" for model in models]

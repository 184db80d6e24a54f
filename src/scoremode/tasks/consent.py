"""Tasks of a folder that somebody else may have written, without the code that they can bring.

The harness's YAML is a program in three ways: `!function` imports Python, a metric that the harness
doesn't have is one of HF Evaluate's, which is fetched and imported, and templates run in Jinja with no
sandbox. Without a user's consent the first two are refused by file and line, and templates run in the
sandbox. Tasks that come with the harness are as trusted as it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jinja2.sandbox
import lm_eval.api.metrics  # pyright: ignore[reportMissingImports]  # fills the registry
import lm_eval.tasks  # pyright: ignore[reportMissingImports]
import yaml
from lm_eval import utils  # pyright: ignore[reportMissingImports]
from lm_eval.api.registry import metric_registry  # pyright: ignore[reportMissingImports]

from scoremode.errors import UsageError, words_of
from scoremode.lib.files import MOST_JSON, read_regular

__all__ = ["check_folder", "sandboxed"]

_OWN = Path(lm_eval.tasks.__file__).parent.resolve()
# As the harness chooses it, so that both read the same.
_LOADER: Any = yaml.CSafeLoader if getattr(yaml, "__with_libyaml__", False) else yaml.FullLoader


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
    """What `include` names in a file's own mapping, and in those that `<<` merges into it."""
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

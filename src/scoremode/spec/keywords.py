"""Flags as the keywords of Python functions: their signatures, and errors that name them.

Errors are raised far below, where flags are named as a command line has them (`--context-length 2`);
the function that a program has called says them by its keywords (`context_length=2`).
"""

import argparse
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, get_args, overload

from scoremode.errors import ScoremodeError, UsageError
from scoremode.spec.flag import Flag, did_you_mean

__all__ = ["Keywords", "in_keywords", "names_keywords"]

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

# A flag's name on a command line → the flags that are keywords of functions; all have one name there.
_FLAGS: dict[str, list[Flag[Any, Any]]] = {}
_FLAG = re.compile(r"(?<![\w/-])--?[a-z][a-z0-9-]*(?![\w/-])")


class Keywords(Generic[P]):
    """A decorator: the function's keywords are a spec's, for type checkers and for `help`, and its
    errors name them. The function raises TypeError for a keyword that isn't one."""

    def __init__(self, spec: Callable[P, object]):
        self._spec: Any = spec

    @overload
    def __call__(
        self, function: Callable[Concatenate[A, B, C, ...], R]
    ) -> Callable[Concatenate[A, B, C, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[A, B, ...], R]
    ) -> Callable[Concatenate[A, B, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[A, ...], R]
    ) -> Callable[Concatenate[A, P], R]: ...
    def __call__(self, function: Any) -> Any:
        signature = inspect.signature(function)
        kinds = inspect.Parameter
        known = {n: p for n, p in signature.parameters.items() if p.kind != kinds.VAR_KEYWORD}
        # Flags without an annotation, `Flag[Given, Value]`, are of a command line alone.
        annotations: dict[str, Any] = {}
        for each in reversed(self._spec.__mro__):
            annotations |= inspect.get_annotations(each)
        for name, flag in self._spec.flags.items():
            if name in annotations and name not in known:
                known[name] = kinds(
                    name,
                    kinds.KEYWORD_ONLY,
                    default=flag.default,
                    annotation=_given(annotations[name]),
                )
            if name in known or name == "model_flag":
                for spelled in flag.names:
                    _FLAGS.setdefault(spelled, []).append(flag)

        @wraps(function)
        def checked(*args: Any, **keywords: Any) -> Any:
            for keyword in sorted(keywords.keys() - known.keys()):
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {keyword!r}"
                    f"{did_you_mean(keyword, known)}"
                )
            return function(*args, **keywords)

        call: Any = names_keywords(checked)
        call.__signature__ = signature.replace(parameters=[*known.values()])
        call.flags = self._spec.flags
        return call


def _given(annotation: Any) -> Any:
    """The first type of `Flag[Given, Value]`, which may be text."""
    if isinstance(annotation, str):
        return annotation.removeprefix("Flag[").rpartition(", ")[0]
    return get_args(annotation)[0]


def names_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: the function's errors name keywords instead of flags."""

    @wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        try:
            return function(*args, **keywords)
        except ScoremodeError as error:
            given = inspect.signature(function).bind_partial(*args, **keywords).arguments
            error.args = (in_keywords(str(error), given | keywords),)
            raise

    return call


def in_keywords(message: str, given: Mapping[str, Any]) -> str:
    """A message in which flags are keywords, `--engine vllm` is `engine='vllm'`; `given`: the call's.

    What stands behind a flag may be its value or the sentence's next word. It is a value where the call
    has it, where the flag's choices or its reader have it, and where it is the flag's own word for one.
    """
    words, end = [], 0
    for match in _FLAG.finditer(message):
        if (flags := _FLAGS.get(match[0])) is None:
            continue
        name = "model" if flags[0].name == "model_flag" else flags[0].name
        words += [message[end : match.start()], name]
        end = match.end()
        if message[end : end + 1] in ("=", " ") and not flags[0].switch:
            text, shown = _value(message[end + 1 :], flags, given.get(name))
            if text:
                words.append(f"={shown}")
                end += 1 + len(text)
    return "".join(words) + message[end:]


def _value(rest: str, flags: Sequence[Flag[Any, Any]], given: Any) -> tuple[str, str]:
    """The value that `rest` begins with and how Python writes it; none of another word."""
    for value in given if isinstance(given, list | tuple) else (given,):
        for text in (repr(value), str(value)):
            if value is not None and text and re.match(rf"{re.escape(text)}(?![\w.]*\w)", rest):
                return text, repr(value) if isinstance(value, str) else str(value)
    match = re.match(r"[^\s,;:()]+", rest)
    word = match[0].rstrip(".") if match else ""
    if word and any(word == flag.metavar for flag in flags):
        return word, word
    if any(_takes(flag, word) for flag in flags):
        return word, word if word[:1].isdigit() else repr(word)
    return "", ""


def _takes(flag: Flag[Any, Any], word: str) -> bool:
    """Tells whether a word is a value of a flag that doesn't take every word."""
    if flag.choices is None and flag.read in (str, Path):
        return False
    try:
        value = flag.read(word)
    except (argparse.ArgumentTypeError, UsageError):
        return False
    return flag.choices is None or value in flag.choices

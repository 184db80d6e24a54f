"""Jinja as chat templates expect it, by transformers' example.

The immutable sandbox, blocks without their newlines, loop controls; `tojson` without HTML's escapes;
`raise_exception`, `strftime_now`, `dict` and `namespace`; and `{% generation %}` around what the model
said. Source: transformers 5.23, `utils/chat_template_utils.py`. Two things differ:

- a text must be the same tomorrow, and on another machine: the date is given, and what draws lots, or
  depends on a time zone or on the order of a set, is refused by its name;
- what takes all memory in one step (a power, a product, a sum or a text of texts) is bounded. A loop is
  not: it has to be interrupted.
"""

import datetime
import json
from collections.abc import Callable, Iterable
from typing import Any

import jinja2
import jinja2.compiler
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils

from scoremode.text.conversations.template import BEGIN, END

__all__ = ["MOST_CHARACTERS", "environment"]

# Longer than any conversation, in characters; and more bits than any number has, more entries than any
# list.
MOST_CHARACTERS = 1 << 26
_MOST_BITS = 1 << 16
_MOST_ENTRIES = 1 << 20


def environment(date: datetime.date) -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """An environment whose templates are told `date` for today, at midnight."""
    made = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    made.filters |= {"tojson": _to_json, "random": _refused("the filter random")}
    made.globals |= {
        "raise_exception": _raise,
        "strftime_now": _Midnight(date),
        "dict": _Dict(),
        "namespace": _Namespace,
        "lipsum": _refused("lipsum"),
    }
    return made


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise jinja2.TemplateError(f"{name} gives another text each time")

    return refuse


def _joined(parts: Iterable[Any]) -> str:
    """Joins the parts of `~`, of a macro and of `{% set %}…{% endset %}`."""
    pieces, size = [], 0
    for part in parts:
        pieces.append(str(part))
        size += len(pieces[-1])
        _check(size, MOST_CHARACTERS, "characters")
    return "".join(pieces)


def _check(size: int, most: int, what: str) -> None:
    if size > most:
        raise jinja2.TemplateError(f"it makes more than {most:,} {what}")


class _Code(jinja2.compiler.CodeGenerator):
    """Jinja's code, with `~` by `_joined`."""

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super().visit_Concat(node, frame)
            return
        self.write("environment.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    code_generator_class = _Code
    concat = staticmethod(_joined)  # pyright: ignore[reportAssignmentType]
    intercepted_binops = frozenset(("**", "*", "+", "-"))

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        if operator == "-":
            difference = left - right
            if isinstance(difference, set):
                raise jinja2.TemplateError("a set has another order each time")
            return difference
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length()
            bits = bits * right if operator == "**" else bits + right.bit_length()
            _check(bits, _MOST_BITS, "binary digits")
        else:
            _check_sequences(operator, left, right)
        return super().call_binop(context, operator, left, right)


def _check_sequences(operator: str, left: Any, right: Any) -> None:
    """Raises TemplateError for a product or sum of sequences that is too long."""
    if operator == "*" and isinstance(left, int):
        left, right = right, left
    if not isinstance(left, str | list | tuple):
        return
    size = len(left)
    if operator == "*" and isinstance(right, int):
        size *= max(right, 0)
    elif operator == "+" and isinstance(right, str | list | tuple):
        size += len(right)
    if isinstance(left, str):
        _check(size, MOST_CHARACTERS, "characters")
    else:
        _check(size, _MOST_ENTRIES, "entries")


class _Midnight:
    """`strftime_now`, at the beginning of a day."""

    def __init__(self, date: datetime.date):
        self._then = datetime.datetime.combine(date, datetime.time())

    def __call__(self, form: str) -> str:
        if "%s" in form.replace("%%", ""):
            raise jinja2.TemplateError("strftime_now's %s depends on the machine's time zone")
        return self._then.strftime(form)


class _Generation(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}`, which puts marks around its text."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marked = self.call_method("_marked")
        return jinja2.nodes.CallBlock(marked, [], [], body).set_lineno(line)

    def _marked(self, caller: jinja2.runtime.Macro) -> str:
        return BEGIN + caller() + END


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


class _Dict:
    """`dict` without the type itself, by whose attributes a template might leave the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(jinja2.utils.Namespace):
    """A namespace without attributes that begin with an underscore, for the same reason."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # A template may have an attribute called self.
        self, *values = args
        attributes = dict(*values, **kwargs)
        for name in attributes:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.TemplateError(f"a namespace has no attribute {name!r}")

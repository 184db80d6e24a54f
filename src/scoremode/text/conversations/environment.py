"""Jinja as chat templates expect it, by transformers' example.

The immutable sandbox, blocks without their newlines, loop controls; `tojson` without HTML's escapes;
`raise_exception`, `strftime_now`, `dict` and `namespace`; and `{% generation %}` around what the model
said. One thing differs: the date is given, since a text must be the same tomorrow.
Source: transformers 5.23, `utils/chat_template_utils.py`.
"""

import datetime
import json
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils

from scoremode.text.conversations.template import BEGIN, END

__all__ = ["environment"]


def environment(date: datetime.date) -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """An environment whose templates are told `date` for today, at midnight."""
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    today = datetime.datetime.combine(date, datetime.time())
    made.filters["tojson"] = _to_json
    made.globals |= {
        "raise_exception": _raise,
        "strftime_now": today.strftime,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return made


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

"""What chat templates find in Jinja's sandbox; `test_template.py` holds texts against transformers."""

import datetime
import json

import jinja2
import pytest

from scoremode.text.conversations.environment import environment

JINJA = environment(datetime.date(2025, 1, 1))


def rendered(text: str, **values: object) -> str:
    return JINJA.from_string(text).render(values)


def test_json_is_pythons_without_htmls_escapes():
    value = {"a": "<b> & \u00e9", "c": [1, None]}
    assert rendered("{{ v | tojson }}", v=value) == json.dumps(value, ensure_ascii=False)
    assert rendered("{{ v | tojson(indent=2) }}", v=value) == json.dumps(
        value, ensure_ascii=False, indent=2
    )


def test_blocks_leave_no_newline_and_loops_can_be_left():
    loop = "    {% if i == 2 %}{% break %}{% endif %}\n{{ i }}\n"
    text = f"{{% for i in [1, 2, 3] %}}\n{loop}{{% endfor %}}\n"
    assert rendered(text) == "1\n"


def test_dict_and_namespace_make_their_values():
    assert rendered("{{ dict(a=1).a }}{{ dict.fromkeys([2]) }}") == "1{2: None}"
    assert rendered("{% set n = namespace(self=1) %}{% set n.x = 2 %}{{ n.self }}{{ n.x }}") == "12"


@pytest.mark.parametrize(
    "text", ["{{ dict.__class__.x }}", "{{ dict.mro() }}", "{{ namespace.mro() }}"]
)
def test_no_way_out_of_the_sandbox(text):
    with pytest.raises(jinja2.TemplateError):
        rendered(text)

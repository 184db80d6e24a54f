"""A model's chat template as the harness asks for it."""

import shutil

import pytest

from scoremode.checkpoint.model_files import resolve_local
from scoremode.errors import TokenizerError
from scoremode.harness.chat import ChatPrompts

PLAIN = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
STERN = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN
DEAF = "{% for m in messages %}{{ m.role }}{% endfor %}"
ASKED = [{"role": "user", "content": "Is it warm?"}]


@pytest.fixture
def speaker(demo, tmp_path):
    def make(template: str | None) -> ChatPrompts:
        folder = tmp_path / "model"
        shutil.copytree(demo / "model", folder)
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        if template is not None:
            (folder / "chat_template.jinja").write_text(template)
        return ChatPrompts([resolve_local(folder)])

    return make


def test_a_prompt_ends_where_the_answer_begins(speaker):
    assert speaker(PLAIN).prompt(ASKED, prompts=True) == "user: Is it warm?\nassistant:"


def test_a_last_message_is_gone_on_with(speaker):
    messages = [*ASKED, {"role": "assistant", "content": "Yes, "}]
    of = speaker(PLAIN)
    assert of.prompt(messages, prompts=False) == "user: Is it warm?\nassistant: Yes, "
    stripping = PLAIN.replace("m.content", "m.content|trim")
    shutil.rmtree(of.places[0].path)
    assert speaker(stripping).prompt(messages, prompts=False).endswith("assistant: Yes,")


def test_a_template_that_takes_no_system_message_gets_none(speaker):
    messages = [{"role": "system", "content": "Be brief."}, *ASKED]
    assert speaker(STERN).prompt(messages, prompts=True) == "user: Is it warm?\nassistant:"


def test_what_a_template_leaves_out_is_an_error(speaker):
    with pytest.raises(TokenizerError, match="leaves out the end of the last message"):
        speaker(DEAF).prompt(ASKED, prompts=False)


def test_a_model_without_a_template_is_an_error(speaker):
    with pytest.raises(TokenizerError, match="has no chat template"):
        _ = speaker(None).template

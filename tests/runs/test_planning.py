"""Plans of a text and a model's name, with nothing of its weights."""

import json
import shutil

import pytest
from support.chats.runs import TEMPLATE, chat_model, write_rows
from support.gguf.files import llama

from scoremode.errors import ProtocolError, TokenizerError
from scoremode.runs.planning import plan_text
from scoremode.text.conversations.corpus import from_conversations_file
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset

RULES = preset("disjoint").override(context_length=64)


@pytest.mark.parametrize("rule", ["config", "tokenizer", "head"])
def test_the_softmax_is_over_what_the_protocol_says(rule, base, text):
    planned = plan_text(from_string(text), RULES.override(vocabulary=rule), model=str(base))
    config = json.loads((base / "config.json").read_text())
    wanted = {"config": config["vocab_size"], "tokenizer": planned.tokenizer.size, "head": None}
    assert planned.vocabulary == wanted[rule]


def test_a_tokenizer_alone_makes_the_same_plan(base, text):
    with_model = plan_text(from_string(text), RULES, model=str(base))
    alone = plan_text(from_string(text), RULES, tokenizer=str(base))
    assert alone.plan.sha256 == with_model.plan.sha256
    assert alone.model_vocabulary is None


def test_neither_a_model_nor_a_tokenizer(text):
    with pytest.raises(TokenizerError, match="no model and no --tokenizer"):
        plan_text(from_string(text), RULES)


def test_a_token_that_the_config_has_no_entry_for(base, text, tmp_path):
    model = shutil.copytree(base, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    largest = int(plan_text(from_string(text), RULES, model=str(base)).plan.tokens.max())
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": largest}))
    said = f"the text has token id {largest}, and {model} has {largest} entries"
    with pytest.raises(TokenizerError, match=said):
        plan_text(from_string(text), RULES, model=str(model))


def test_a_gguf_file_has_its_own_config(base, text, tmp_path):
    file = tmp_path / "x.gguf"
    file.write_bytes(llama())
    protocol = preset("disjoint").override(context_length=128)
    with pytest.raises(TokenizerError, match=f"and {file} has 80 entries"):
        plan_text(from_string(text), protocol, model=str(file), tokenizer=str(base))


def test_a_plan_tells_less_of_conversations_than_makes_them_the_same(demo, tmp_path):
    model = chat_model(demo, tmp_path / "model")
    write_rows(demo, tmp_path / "chats.jsonl")
    rules = preset("chat").override(context_length=64)

    def planned(**how):
        chats = from_conversations_file(tmp_path / "chats.jsonl", **how)
        return plan_text(chats, rules, model=str(model))

    plain, others = planned(), [planned(group_by="domain"), planned(arguments={"x": 1})]
    for other in others:
        assert other.identity() != plain.identity()
        assert other.identity()["plan"] == plain.identity()["plan"]
    made = plain.to_json(from_conversations_file(tmp_path / "chats.jsonl"))
    assert made["corpus"]["conversations"] == plain.chat
    assert made["corpus"]["text"]["bytes"] == (tmp_path / "chats.jsonl").stat().st_size
    assert plan_text(from_string("a b c"), RULES, model=str(model)).identity().keys() == {"plan"}


@pytest.mark.parametrize("long", ["truncate", "split", "skip"])
def test_chats_that_fit_a_model_are_planned_as_for_any_other(demo, tmp_path, long):
    """Of 512 positions where 4,096 are usual: one chat that is longer makes these the length."""
    model = str(chat_model(demo, tmp_path / "model"))
    rules, file = preset("chat").override(long=long), tmp_path / "chats.jsonl"
    rows = write_rows(demo, file)
    fits = plan_text(from_conversations_file(file), rules, model=model)
    free = plan_text(from_conversations_file(file), rules, tokenizer=model)
    assert fits.plan.sha256 == free.plan.sha256 and fits.notes == free.notes == ()
    assert fits.plan.protocol == free.plan.protocol == rules.resolve(None)
    assert fits.plan.protocol.context_length == 4096
    said = " ".join(message["content"] for row in rows for message in row["messages"])
    longer = {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": said}]
    }
    file.write_text(file.read_text() + json.dumps(longer) + "\n")
    cut = plan_text(from_conversations_file(file), rules, model=model)
    name = f"{rules.name}+context-length=512"
    assert cut.plan.protocol == rules.override(context_length=512).resolve(None)
    assert cut.plan.protocol.name == name and cut.plan.lengths.max() <= 512
    assert cut.chat is not None and cut.chat["long"] == 1
    assert (cut.chat["beyond"] == 0) == (long == "split")
    assert cut.notes == (
        "1 of 13 conversations are longer than the model's 512 positions, so these are the context "
        f"length (protocol {name})",
    )
    # Asked for by its number it is refused, and so it is for a base of fewer positions.
    error = r"model: context length 4096 exceeds the model's 512 positions, and 1 of 13 windows are"
    with pytest.raises(ProtocolError, match=error) as caught:
        plan_text(from_conversations_file(file), rules.override(context_length=4096), model=model)
    assert caught.value.instead == {"--context-length": "512"}


def test_a_protocol_is_for_conversations_or_for_texts(demo, tmp_path):
    model = str(chat_model(demo, tmp_path / "model"))
    write_rows(demo, tmp_path / "chats.jsonl")
    chats = from_conversations_file(tmp_path / "chats.jsonl")
    with pytest.raises(ProtocolError, match=r"is for rows, and chats\.jsonl is conversations"):
        plan_text(chats, RULES, model=model)
    with pytest.raises(
        ProtocolError, match=r"protocol chat.* is for conversations, and .* is a text"
    ):
        plan_text(from_string("a"), preset("chat").override(context_length=64), model=model)


def test_a_tokenizer_that_is_given_brings_its_template(demo, tmp_path):
    """The model's own, where it brings none; what ends a turn is the tokens of both."""
    write_rows(demo, tmp_path / "chats.jsonl")
    chats = from_conversations_file(tmp_path / "chats.jsonl")
    rules = preset("chat").override(context_length=64)
    model = chat_model(demo, tmp_path / "model")
    other = chat_model(demo, tmp_path / "other", TEMPLATE.replace("[assistant]", "<assistant>"))
    (other / "generation_config.json").write_text('{"eos_token_id": 7}')

    def facts() -> dict:
        found = plan_text(chats, rules, model=str(model), tokenizer=str(other)).chat
        assert found is not None
        return found

    assert facts()["template"]["source"] == str(other / "chat_template.jinja")
    assert facts()["ends"] == [1, 7]
    (other / "chat_template.jinja").unlink()
    assert facts()["template"]["source"] == str(model / "chat_template.jinja")

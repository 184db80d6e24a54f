"""Conversations from a model to a file and its record, whole or killed and gone on with."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from scoremode.engines.sampling import Sampling, seed_of
from scoremode.engines.torch.sampler import TorchSampler, TorchSampling
from scoremode.errors import CorpusError, RunFolderError, TokenizerError, UsageError
from scoremode.lib.files import write_text
from scoremode.runs.generate import Generation, generate
from scoremode.runs.planning import plan_text
from scoremode.runs.replies import prompts_of
from scoremode.text.conversations.corpus import from_conversations_file
from scoremode.text.protocol import preset

TEMPLATE = (
    "<s>{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
SAID = ("The same value", "is computed once", "and", "the result is used again", "a list of")


@pytest.fixture
def wanted(demo, tmp_path) -> Generation:
    """Five prompts, two of one length, three replies to each, in batches of four."""
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    rows = [{"prompt": said, "domain": said[:1]} for said in SAID]
    prompts = prompts_of(rows, [f"row {i}" for i in range(len(rows))], "p", "p.jsonl", "0" * 64)
    return Generation(
        base=str(demo / "model"),
        prompts=prompts,
        output=tmp_path / "chats.jsonl",
        engine=TorchSampling(device="cpu", dtype="float32", batch_size=4),
        sampling=Sampling(12),
        samples=3,
        template=template,
    )


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_reply_is_there_in_the_order_of_prompts(wanted):
    record = generate(wanted)
    rows = rows_of(wanted.output)
    places = [(row["generated"]["prompt"], row["generated"]["sample"]) for row in rows]
    assert places == [(p, k) for p in range(5) for k in range(3)]
    for row, (p, k) in zip(rows, places, strict=True):
        assert row["domain"] == SAID[p][:1]
        assert row["generated"]["seed"] == seed_of(0, p, k)
    counts = record["counts"]
    assert counts["replies"] == counts["written"] == 15
    assert counts["ended"] + counts["cut"] == 15
    assert counts["ended"] == sum(row["finish_reason"] == "stop" for row in rows)
    assert counts["tokens"] == sum(row["generated"]["tokens"] for row in rows)
    assert not list(wanted.output.parent.glob("*.part*"))


def test_the_record_says_what_made_the_file(wanted, demo):
    record = generate(wanted)
    file = wanted.output.with_name("chats.jsonl.json")
    assert json.loads(file.read_text()) == record
    data = wanted.output.read_bytes()
    assert record["output"]["sha256"] == sha256(data).hexdigest()
    weights = (demo / "model" / "model.safetensors").read_bytes()
    assert record["base"]["files"]["model.safetensors"] == sha256(weights).hexdigest()
    assert record["template"]["sha256"] == sha256(TEMPLATE.encode()).hexdigest()
    assert record["sampling"] == wanted.sampling.to_json() | {"seed": 0, "samples": 3}
    assert record["ends"] == [1]
    assert record["prompts"]["prompts"] == 5
    assert record["versions"]["transformers"] and record["engine"]["model_class"]
    corpus = from_conversations_file(wanted.output)
    generated = corpus.to_json()["generated"]
    assert generated["base"] == record["base"]
    assert generated["record_sha256"] == sha256(file.read_bytes()).hexdigest()


def test_a_run_scores_the_tokens_that_were_generated_and_no_other(wanted, demo):
    """Against what transformers' `generate` gave, by a sampler of its own."""
    generate(wanted)
    corpus = replace(from_conversations_file(wanted.output), template=wanted.template)
    protocol = preset("chat").override(context_length=512)
    plan = plan_text(corpus, protocol, model=str(demo / "model")).plan
    replies = {}

    class Noted(TorchSampler):
        def replies(self, batch):
            found = super().replies(batch)
            replies.update({a.seed: (a.ids, r) for a, r in zip(batch, found, strict=True)})
            return found

    class Noting(TorchSampling):
        def open(self, *args):
            made = super().open(*args)
            made.__class__ = Noted
            return made

    other = wanted.output.with_name("other.jsonl")
    engine = Noting(device="cpu", dtype="float32", batch_size=4)
    generate(replace(wanted, output=other, engine=engine))
    assert other.read_bytes() == wanted.output.read_bytes()
    assert sorted(plan.conversation) == list(range(len(replies))) == list(range(15))
    assert any(not reply.ended for _, reply in replies.values())
    for place, start, stop in zip(plan.conversation, plan.start, plan.stop, strict=True):
        ids, reply = replies[seed_of(0, *divmod(int(place), 3))]
        assert plan.tokens[start:stop].tolist() == [*ids.tolist(), *reply.ids]
        counted = plan.counted[start:stop]
        assert np.flatnonzero(counted).tolist() == list(range(len(ids), stop - start))


def test_the_same_call_gives_the_same_bytes_and_finds_what_is_there(wanted):
    generate(wanted)
    before = wanted.output.read_bytes()
    said: list[str] = []
    stamp = wanted.output.stat().st_mtime_ns
    record = generate(wanted, notify=said.append)
    assert said == [f"{wanted.output}: is there already, as this command writes it"]
    assert wanted.output.stat().st_mtime_ns == stamp
    wanted.output.unlink()
    assert generate(wanted)["output"] == record["output"]
    assert wanted.output.read_bytes() == before
    other = replace(wanted, seed=1, output=wanted.output.with_name("b.jsonl"))
    generate(other)
    assert other.output.read_bytes() != before


class Killed(BaseException):
    """As an interrupt is one."""


class Breaking(TorchSampling):
    """Is killed in the batch of that number; and counts those that it has sampled."""

    at, sampled = 10**9, 0

    def open(self, *args):
        made, how = super().open(*args), self
        replies = made.replies

        def counted(batch):
            Breaking.sampled += 1
            if Breaking.sampled > how.at:
                raise Killed
            return replies(batch)

        made.replies = counted
        return made


def test_wherever_it_is_killed_it_goes_on_to_the_same_bytes(wanted, monkeypatch):
    generate(wanted)
    whole = wanted.output.read_bytes()
    folder = wanted.output.parent
    engine = Breaking(device="cpu", dtype="float32", batch_size=4)
    for at in range(1, 6):
        again = replace(wanted, output=folder / f"killed-{at}.jsonl", engine=engine)
        monkeypatch.setattr(Breaking, "at", at)
        monkeypatch.setattr(Breaking, "sampled", 0)
        try:
            generate(again)
            batches = Breaking.sampled
            break
        except Killed:
            assert not again.output.exists() and (folder / f"killed-{at}.jsonl.part").exists()
        monkeypatch.setattr(Breaking, "at", 10**9)
        monkeypatch.setattr(Breaking, "sampled", 0)
        told: list[int] = []
        generate(again, progress=lambda done, of, told=told: told.append(done))
        assert again.output.read_bytes() == whole
        assert told[0] > 0 and sum(told) == 15 and len(told) == Breaking.sampled + 1
    # Prompts of 4 lengths or 5, three replies each: more batches than one, and the last is reached.
    assert batches == at >= 4


@pytest.mark.parametrize("writing", [1, 2])
def test_killed_while_it_is_finished_it_goes_on_to_the_same_bytes(wanted, monkeypatch, writing):
    generate(wanted)
    whole, calls = wanted.output.read_bytes(), []
    again = replace(wanted, output=wanted.output.with_name("again.jsonl"))

    def killed(path, text):
        write_text(path, text)
        calls.append(path)
        if len(calls) == writing:
            raise Killed

    with monkeypatch.context() as during:
        during.setattr("scoremode.runs.generate.write_text", killed)
        with pytest.raises(Killed):
            generate(again)
    generate(again)
    assert again.output.read_bytes() == whole
    assert sorted(path.name for path in again.output.parent.glob("again*")) == [
        "again.jsonl",
        "again.jsonl.json",
    ]


def test_killed_in_the_first_batch_it_leaves_nothing(wanted, monkeypatch):
    monkeypatch.setattr(Breaking, "at", 0)
    monkeypatch.setattr(Breaking, "sampled", 0)
    with pytest.raises(Killed):
        generate(replace(wanted, engine=Breaking(device="cpu", dtype="float32")))
    assert not list(wanted.output.parent.glob("chats*"))


def test_another_commands_output_is_left_alone(wanted):
    generate(wanted)
    before = wanted.output.read_bytes()
    with pytest.raises(RunFolderError, match="is there already, with sampling max_new_tokens 12"):
        generate(replace(wanted, sampling=Sampling(13)))
    wanted.output.write_bytes(before + b"\n")
    with pytest.raises(RunFolderError, match="no record says how it was made"):
        generate(wanted)
    wanted.output.unlink()
    wanted.output.with_name("chats.jsonl.json").unlink()
    wanted.output.write_text("mine")
    with pytest.raises(RunFolderError, match="no record says how it was made"):
        generate(wanted)
    assert wanted.output.read_text() == "mine"


def test_what_cannot_be_generated_is_one_line(wanted, tmp_path):
    for change, kind, words in [
        ({"samples": 0}, UsageError, "--samples-per-prompt 0"),
        ({"sampling": Sampling(510)}, CorpusError, "row 0: has .* exceeds the model's 512 positions"),
        ({"template": None}, TokenizerError, "has no chat template: give one"),
        ({"output": tmp_path / "none" / "x.jsonl"}, RunFolderError, "is in no folder"),
    ]:  # fmt: skip
        with pytest.raises(kind, match=words):
            generate(replace(wanted, **change))
    assert not list(tmp_path.glob("chats*"))


def test_replies_that_do_not_come_back_are_left_out(wanted, tmp_path):
    """By a template that writes other words than were said, and not what the tokenizer adds."""
    template = tmp_path / "lying.jinja"
    lying = TEMPLATE.replace("{{ m.content }}", "{{ m.content | upper }}")
    template.write_text(lying)
    texts = replace(wanted, template=template, output=tmp_path / "texts.jsonl")
    assert generate(texts)["counts"]["written"] == 15
    assert sum("completion" in row for row in rows_of(texts.output)) > 10
    template.write_text(lying.removeprefix("<s>"))
    wanted = replace(wanted, template=template)
    try:
        counts = generate(wanted)["counts"]
    except CorpusError as error:
        assert "none of 15 replies gives a conversation" in str(error)
    else:
        assert counts["left_out"] > 10
        assert counts["written"] == len(rows_of(wanted.output)) == 15 - counts["left_out"]

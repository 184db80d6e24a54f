"""A model card's Markdown, held against what a Markdown library makes of it."""

import html
import re

import pytest
import yaml
from huggingface_hub import ModelCardData, parse_eval_result_entries
from huggingface_hub.repocard_data import model_index_to_eval_results
from markdown_it import MarkdownIt
from support.card_groups import HUB_TEXT, changes_of, made_run, two_groups
from support.comparisons import made, overlapping
from support.run_folders import CONTEXT, write_run

from scoremode.cli.card import groups_of
from scoremode.report.card.content import (
    BEGIN,
    END,
    card_block,
    entry_files,
    model_index,
    results_of,
)

GITHUB = MarkdownIt("commonmark").enable(["table", "strikethrough"])


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    return two_groups(tmp_path_factory.mktemp("runs"))


def tables(block: str) -> list[list[list[str]]]:
    found = re.findall(r"<table>(.*?)</table>", GITHUB.render(block), re.DOTALL)
    return [
        [
            [html.unescape(c) for c in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
            for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
        ]
        for table in found
    ]


def test_a_table_a_plan_with_the_base_as_a_row(groups):
    block = card_block(groups)
    first, second = tables(block)
    assert [row[0] for row in first] == ["model", "base (base)", "Q8_0", "Q4_K_M"]
    assert [row[0] for row in second] == ["model", "base (base)", "Q4_K_M"]
    base, best = (dict(zip(first[0], row, strict=True)) for row in first[1:3])
    assert (base["bits/weight, layers"], base["GiB"], base["KLD (nats)"]) == (
        "16.000",
        "14.960",
        "—",
    )
    metrics = groups[0].records[0].document["metrics"]
    kld = metrics["kld"]
    low, high = kld["ci95"]
    assert best["KLD (nats)"] == f"{kld['value']:.4g} [{low:.4g}, {high:.4g}]"
    assert best["PPL"].startswith(f"{metrics['ppl']['value']:.4f} [")
    assert base["PPL"].startswith(f"{metrics['ppl_base']['value']:.4f} [")
    assert "\\" not in block and block.startswith(BEGIN) and block.rstrip().endswith(END)


def test_protocol_text_base_and_hashes_are_in_a_line_and_short(groups):
    (line, other) = (p for p in card_block(groups).splitlines() if p.startswith("Protocol "))
    record = groups[0].records[0].document
    for words in (
        *("windows of 64 tokens every 64", "made.txt", "against base", "in nats"),
        *(record["corpus"]["text"]["sha256"][:12], record["plan"]["sha256"][:12]),
        f"{record['plan']['scored']:,} targets (scored tokens) in "
        f"{record['plan']['windows']:,} windows",
    ):
        assert words in line
    assert "bos=never" in other and "org/data en validation" in other
    assert not re.search(r"[0-9a-f]{13}", line)


def test_why_there_is_no_interval_is_said(tmp_path, groups):
    scores = made(**overlapping(200, CONTEXT, 64), noise=0.1, full=False)
    folder = write_run(tmp_path / "x", scores, changes=changes_of(**HUB_TEXT))
    few = groups_of([folder])
    why = "1 block of 1,024 tokens: an interval needs at least 8"
    assert f"No 95 % intervals, so a small difference may be chance: {why}." in card_block(few)
    (text,) = entry_files(few, {}).values()
    assert text.count("no interval: ") == 2
    assert "No 95 %" not in card_block(groups)


def test_commands_stand_as_they_are_typed(groups):
    code = re.findall(
        r"<pre><code[^>]*>(.*?)</code></pre>", GITHUB.render(card_block(groups)), re.DOTALL
    )
    first, second = (html.unescape(c).splitlines() for c in code)
    assert [line.split()[:3] for line in first] == [
        ["scoremode", "kld", "Q8_0"],
        ["scoremode", "kld", "me/Q4_K_M"],
    ]
    assert "--dataset org/data --dataset-config en --split validation" in second[0]


def test_the_footer_names_the_version_and_no_badge(groups):
    block = card_block(groups)
    version = groups[0].records[0].document["versions"]["scoremode"]
    assert f"<sub>Measured with scoremode {version}; records " in block
    assert "![" not in block and "http" not in block and "<img" not in block


def test_what_a_number_does_not_contain_is_told(tmp_path):
    run = made_run(
        tmp_path / "x",
        0.3,
        "models/W4A4",
        **{"engine.activations": {"declared": "int4 token", "ran": "not quantized"}},
    )
    block = card_block(groups_of([run]))
    assert "- W4A4: less than declared: activations are declared int4 token" in block


HOSTILE = "models/<script>alert(1)</script>[x](http://e.vil)`*a*`|b\x1b[31m```"


def test_a_model_s_name_does_nothing(tmp_path):
    block = card_block(groups_of([made_run(tmp_path / "x", 0.3, HOSTILE)]))
    page = GITHUB.render(block)
    body = page.replace("<sub>", "").replace("</sub>", "")
    assert "<script" not in body and "<a " not in body and "<em>" not in body
    assert "\x1b" not in block and len(tables(block)[0]) == 3
    assert {len(row) for row in tables(block)[0]} == {len(tables(block)[0][0])}


@pytest.fixture(scope="module")
def both_groups(tmp_path_factory):
    return two_groups(tmp_path_factory.mktemp("runs"))


def test_every_number_is_what_it_is(both_groups):
    results = results_of(both_groups, {})
    record, row = both_groups[0].records[0].document, both_groups[0].value["runs"][0]
    ours = [r for r in results if r.metric_name.endswith(", Q8_0")]
    assert {r.metric_type: r.metric_value for r in ours} == {
        "perplexity": record["metrics"]["ppl"]["value"],
        "perplexity_ratio": record["metrics"]["ppl_ratio"]["value"],
        "kl_divergence": record["metrics"]["kld"]["value"],
        "top1_agreement": record["metrics"]["top1"]["value"],
        "acceptance": record["metrics"]["acceptance"]["value"],
    }
    assert {r.verified for r in results} == {False} and {r.task_type for r in results} == {
        "text-generation"
    }
    kld = next(r for r in ours if r.metric_type == "kl_divergence")
    assert kld.metric_args["base"] == "base" and kld.metric_args["ci95"] == row["kld"]["ci95"]
    assert kld.metric_args["plan_sha256"] == record["plan"]["sha256"]
    assert kld.source_url is None and kld.source_name is None
    ppl = next(r for r in ours if r.metric_type == "perplexity")
    assert "base" not in ppl.metric_args


def test_a_text_is_the_hub_s_data_set_only_where_it_is_one(both_groups):
    results = results_of(both_groups, {})
    file, data = results[0], results[-1]
    assert (file.dataset_type, file.dataset_name, file.dataset_split) == (
        "custom",
        "made.txt",
        None,
    )
    assert (data.dataset_type, data.dataset_config, data.dataset_split, data.dataset_revision) == (
        *("org/data", "en", "validation"),
        40 * "d",
    )


def test_wikitext_from_a_file_is_wikitext(tmp_path):
    named = {"corpus.name": "wikitext wikitext-2-raw-v1 test", "corpus.rows": 4358}
    (group,) = groups_of([made_run(tmp_path / "x", 0.3, "models/x", **named)])
    result = results_of([group], {})[0]
    assert (result.dataset_type, result.dataset_config, result.dataset_split) == (
        *("Salesforce/wikitext", "wikitext-2-raw-v1"),
        "test",
    )


def test_the_model_index_is_read_back_by_the_hub_s_classes(both_groups):
    sources = {
        row["folder"]: f"https://x/{i}" for i, row in enumerate(both_groups[0].value["runs"])
    }
    results = results_of(both_groups, sources)
    index = model_index("my-model", results)
    name, read = model_index_to_eval_results(yaml.safe_load(yaml.safe_dump(index)))
    assert name == "my-model" and read == results
    assert [r.source_url for r in read[::5]] == ["https://x/0", "https://x/1", None]
    assert read[0].source_name.startswith("scoremode ")
    data = ModelCardData(model_name="my-model", eval_results=results)
    assert data.to_dict()["model-index"][0]["name"] == "my-model"


def test_entries_are_of_hub_data_sets_alone_and_read_back(both_groups):
    sources = {both_groups[1].value["runs"][0]["folder"]: "https://x/record.json"}
    files = entry_files(both_groups, sources)
    plan = both_groups[1].records[0].document["plan"]["sha256"][:8]
    assert list(files) == [f".eval_results/scoremode-Q4_K_M-{plan}.yaml"]
    ppl, kld = parse_eval_result_entries(yaml.safe_load(files.popitem()[1]))
    record = both_groups[1].records[0].document
    assert (ppl.dataset_id, ppl.task_id, ppl.value) == (
        *("org/data", "perplexity"),
        record["metrics"]["ppl"]["value"],
    )
    assert (kld.task_id, kld.value) == ("kl_divergence", record["metrics"]["kld"]["value"])
    assert kld.dataset_revision == 40 * "d" and kld.date == "2026-01-02T03:04:05+00:00"
    assert kld.source_url == "https://x/record.json" and kld.verify_token is None
    assert "95 % [" in kld.notes and "base base" in kld.notes and "bos=never" in kld.notes


def test_a_model_s_name_stays_in_its_folder(tmp_path):
    named = {"corpus.name": "d test", "corpus.source": "hub:o/d@1", "corpus.rows": 3}
    (group,) = groups_of([made_run(tmp_path / "x", 0.3, "hub:o/..: {a}\n- b@1", **named)])
    (path,) = entry_files([group], {})
    assert path.startswith(".eval_results/scoremode-") and ".." not in path and path.count("/") == 1
    (result, *_) = results_of([group], {})
    _, read = model_index_to_eval_results(
        yaml.safe_load(yaml.safe_dump(model_index("m", [result])))
    )
    assert read == [result]

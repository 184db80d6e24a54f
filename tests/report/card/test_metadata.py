"""The hub's metadata: what huggingface_hub's own classes read in it."""

import pytest
import yaml
from huggingface_hub import ModelCardData, parse_eval_result_entries
from huggingface_hub.repocard_data import model_index_to_eval_results
from support.card_groups import made_run, two_groups

from scoremode.cli.card import groups_of
from scoremode.report.card.metadata import entry_files, model_index, results_of


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    return two_groups(tmp_path_factory.mktemp("runs"))


def test_every_number_is_what_it_is(groups):
    results = results_of(groups, {})
    record, row = groups[0].records[0], groups[0].value["runs"][0]
    ours = [r for r in results if r.metric_name.endswith(", Q8_0")]
    assert {r.metric_type: r.metric_value for r in ours} == {
        "perplexity": record["metrics"]["ppl"]["value"],
        "perplexity_ratio": record["metrics"]["ppl_ratio"]["value"],
        "kl_divergence": record["metrics"]["kld"]["value"],
        "top1_agreement": record["metrics"]["top1"]["value"],
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


def test_a_text_is_the_hub_s_data_set_only_where_it_is_one(groups):
    results = results_of(groups, {})
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


def test_the_model_index_is_read_back_by_the_hub_s_classes(groups):
    sources = {row["folder"]: f"https://x/{i}" for i, row in enumerate(groups[0].value["runs"])}
    results = results_of(groups, sources)
    index = model_index("my-model", results)
    name, read = model_index_to_eval_results(yaml.safe_load(yaml.safe_dump(index)))
    assert name == "my-model" and read == results
    assert [r.source_url for r in read[::4]] == ["https://x/0", "https://x/1", None]
    assert read[0].source_name.startswith("scoremode ")
    data = ModelCardData(model_name="my-model", eval_results=results)
    assert data.to_dict()["model-index"][0]["name"] == "my-model"


def test_entries_are_of_hub_data_sets_alone_and_read_back(groups):
    sources = {groups[1].value["runs"][0]["folder"]: "https://x/record.json"}
    files = entry_files(groups, sources)
    plan = groups[1].records[0]["plan"]["sha256"][:8]
    assert list(files) == [f".eval_results/scoremode-Q4_K_M-{plan}.yaml"]
    ppl, kld = parse_eval_result_entries(yaml.safe_load(files.popitem()[1]))
    record = groups[1].records[0]
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

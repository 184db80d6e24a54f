"""The files of a card in a repository."""

import json

import pytest
from huggingface_hub import ModelCard
from support.card_groups import two_groups

from scoremode.errors import RunFolderError, UsageError
from scoremode.report.card.files import card_files, read_readme, write_files


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    return two_groups(tmp_path_factory.mktemp("runs"))


def files_of(groups, readme="", **more):
    return card_files(groups, readme, name="README.md", model="mine", **more)


def test_without_an_address_no_source_is_named_and_no_record_goes_along(groups):
    files = files_of(groups, "# Mine\n")
    assert [path.split("/")[0] for path in files] == ["README.md", ".eval_results"]
    assert {r.source_url for r in ModelCard(files["README.md"]).data.eval_results} == {None}
    assert "source" not in files.popitem()[1]


def test_with_an_address_each_result_s_source_is_a_record_that_is_there(groups):
    files = files_of(groups, address_of=lambda path: f"https://hub/{path}")
    records = {path: text for path, text in files.items() if path.endswith("record.json")}
    assert sorted(records) == [f"scoremode/{name}/record.json" for name in "abc"]
    results = ModelCard(files["README.md"]).data.eval_results
    for result in results:
        record = json.loads(records[result.source_url.removeprefix("https://hub/")])
        assert result.metric_args["plan_sha256"] == record["plan"]["sha256"]
        names = {"perplexity": "ppl", "perplexity_ratio": "ppl_ratio", "kl_divergence": "kld"}
        name = names.get(result.metric_type, "top1")
        assert result.metric_value == record["metrics"][name]["value"]


def test_written_twice_they_are_the_same(groups, tmp_path):
    assert read_readme(tmp_path) == ""
    write_files(tmp_path / "repo", files_of(groups))
    first = {p: p.read_bytes() for p in (tmp_path / "repo").rglob("*") if p.is_file()}
    write_files(tmp_path / "repo", files_of(groups, read_readme(tmp_path / "repo")))
    assert first == {p: p.read_bytes() for p in (tmp_path / "repo").rglob("*") if p.is_file()}
    assert len(first) == 2


def test_what_is_no_readme_is_refused(groups, tmp_path):
    (tmp_path / "README.md").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"README\.md: 'utf-8'"):
        read_readme(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="is not a folder"):
        write_files(tmp_path / "file", {"README.md": ""})
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / ".eval_results").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        write_files(tmp_path / "x", {".eval_results/a.yaml": ""})


def test_nothing_is_read_or_written_through_a_link_in_a_model_s_folder(groups, tmp_path):
    model, outside = tmp_path / "model", tmp_path / "outside"
    outside.mkdir()
    (outside / "notes").write_text("mine")
    model.mkdir()
    (model / "README.md").symlink_to(outside / "notes")
    with pytest.raises(UsageError, match=r"README\.md: is a link, not a file"):
        read_readme(model)
    write_files(model, {"README.md": "new"})
    assert (outside / "notes").read_text() == "mine" and (model / "README.md").read_text() == "new"
    (model / ".eval_results").symlink_to(outside)
    with pytest.raises(RunFolderError, match=r"\.eval_results: cannot be written: is a link"):
        write_files(model, files_of(groups))
    assert [p.name for p in outside.iterdir()] == ["notes"]

"""A README with our block and metadata: what was there is there."""

import base64
import json

import pytest
import yaml
from huggingface_hub import EvalResult, ModelCard
from support.card_groups import two_groups
from support.fake_hub import COMMIT, Hub, Repo, call, serve

from scoremode.errors import RunFolderError, UsageError
from scoremode.lib.hub import check_repo
from scoremode.report.card.content import BEGIN, END, model_index
from scoremode.report.card.repository import (
    card_files,
    changes,
    read_readme,
    with_block,
    with_model_index,
    write_files,
)
from scoremode.results.metrics import METRICS

BLOCK = f"{BEGIN}\n\nnew\n\n{END}\n"
RESULT = EvalResult(
    task_type="text-generation",
    dataset_type="d",
    dataset_name="D",
    metric_type="perplexity",
    metric_value=5.0,
    metric_args={"tool": "scoremode 0.1.0"},
    verified=False,
)
INDEX = model_index("mine", [RESULT])
CARD = """---
license: apache-2.0  # chosen with care
model-index:
- name: theirs
  results:
  - task: {type: text-generation}
    dataset: {type: mmlu, name: MMLU}
    metrics:
    - {type: accuracy, value: 0.5}
    - {type: perplexity, value: 9.0, args: {tool: scoremode 0.0.9}}
tags: [a,   b]
---

# Mine

text
"""


def test_a_block_goes_to_the_end_and_then_stays_where_it_is():
    once = with_block("# Mine\n\ntext\n", BLOCK, "README.md")
    assert once == f"# Mine\n\ntext\n\n{BLOCK}"
    moved = once.replace("text\n\n", "") + "\nbehind\n"
    again = with_block(moved, BLOCK.replace("new", "newer"), "README.md")
    assert again == f"# Mine\n\n{BLOCK.replace('new', 'newer')}\nbehind\n"
    assert with_block("", BLOCK, "README.md") == BLOCK
    windows = with_block("a\r\n", BLOCK, "README.md")
    assert windows == "a\r\n\r\n" + BLOCK.replace("\n", "\r\n")
    assert with_block(windows, BLOCK, "README.md") == windows


@pytest.mark.parametrize("text", [BEGIN, END, f"{END}\n{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_markers_that_are_no_pair_are_refused(text):
    with pytest.raises(UsageError, match=r"^x/README.md: has \d of "):
        with_block(text, BLOCK, "x/README.md")


def test_front_matter_keeps_what_is_there():
    text = with_model_index(CARD, INDEX, "README.md")
    assert "license: apache-2.0  # chosen with care\n" in text and "tags: [a,   b]\n" in text
    assert text.endswith("---\n\n# Mine\n\ntext\n")
    data = ModelCard(text).data
    assert [(r.dataset_type, r.metric_type, r.metric_value) for r in data.eval_results] == [
        ("mmlu", "accuracy", 0.5),
        ("d", "perplexity", 5.0),
    ]
    assert data.model_name == "theirs" and data.license == "apache-2.0" and data.tags == ["a", "b"]
    assert with_model_index(text, INDEX, "README.md") == text


@pytest.mark.parametrize(
    "text",
    [
        "# Mine\n",
        "",
        "---\n---\n# Mine\n",
        "---\nlicense: mit\n---\n",
        "---\r\na: b\r\n---\r\nx\r\n",
    ],
)
def test_every_readme_gets_one(text):
    made = with_model_index(text, INDEX, "README.md")
    assert ModelCard(made).data.eval_results == [RESULT]
    assert made.endswith(text.rpartition("---")[2])
    assert ("\r\n" in text) == ("\r\n" in made) and "\n" in made
    assert with_model_index(made, INDEX, "README.md") == made


@pytest.mark.parametrize(
    ("front", "said"),
    [
        ("a: [", "is no YAML"),
        ("- a", "its front matter is list"),
        ("model-index: 5", "not as the hub has it"),
        ("model-index: [{name: a}]", "not as the hub has it"),
    ],
)
def test_front_matter_that_is_none_is_refused_in_a_line(front, said):
    with pytest.raises(UsageError, match=said) as refused:
        with_model_index(f"---\n{front}\n---\nx\n", INDEX, "README.md")
    assert "\n" not in str(refused.value)


def test_a_line_in_the_text_is_no_front_matter():
    text = "# Mine\n\n---\nlicense: no\n---\n"
    made = with_model_index(text, INDEX, "README.md")
    assert made.endswith(f"\n{text}") and yaml.safe_load(made.split("---")[1]).keys() == {
        "model-index"
    }


@pytest.mark.parametrize("behind", ["license: mit\n", ""])
@pytest.mark.parametrize("own", ["  results: []\n", "  note: |\n    a\n    b\n  results: []\n"])
def test_comments_and_empty_lines_around_our_part_stay(behind, own):
    kept = f"# of the licence\n\n# and more\n{behind}---\n# Hi\n"
    text = f"---\ntags: [a]\n# before\nmodel-index:\n- name: x\n{own}{kept}"
    made = with_model_index(text, INDEX, "README.md")
    assert made.startswith("---\ntags: [a]\n# before\nmodel-index:\n- name: x\n")
    assert made.endswith(kept) and ModelCard(made).data.eval_results == [RESULT]
    assert with_model_index(made, INDEX, "README.md") == made


@pytest.mark.parametrize(
    "front", ["{license: mit}", "{license: mit, model-index: []}", "license: mit\n..."]
)
def test_front_matter_that_nothing_can_be_put_into_is_refused(front):
    """In braces all of it is one line, and the licence would be gone with it."""
    with pytest.raises(UsageError, match=r"^README.md: its front matter is written so that"):
        with_model_index(f"---\n{front}\n---\nHi\n", INDEX, "README.md")


def test_front_matter_behind_an_empty_line_is_front_matter_as_it_is_to_the_hub():
    made = with_model_index("\n---\nlicense: mit\n---\nHi\n", INDEX, "README.md")
    assert made.count("---") == 2 and ModelCard(made).data.license == "mit"
    assert ModelCard(made).data.eval_results == [RESULT]


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
        (name,) = [m.key for m in METRICS if m.hub and m.hub[0] == result.metric_type]
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


README = "---\nlicense: mit\n---\n\n# Mine\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("runs")
    two_groups(folder)
    return [str(folder / name) for name in "abc"]


@pytest.fixture
def hub():
    files = {"README.md": README.encode(), "config.json": b"{}"}
    with serve({"me/mine": Repo(files), "me/bare": Repo({})}) as running:
        yield running


def push(hub: Hub, home, runs: list[str], repo: str) -> tuple[int, str, str]:
    script = (
        "import contextlib, io, json; from scoremode.cli.main import main\n"
        "out, err = io.StringIO(), io.StringIO()\n"
        "with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):\n"
        f"    code = main(['card', *{runs!r}, '--push', {repo!r}, '--yes'])\n"
        "print(json.dumps([code, out.getvalue(), err.getvalue()]))"
    )
    return tuple(call(hub.endpoint, home, script))


def sent(hub: Hub) -> tuple[str, dict, dict[str, str]]:
    ((path, (header, *lines)),) = hub.commits
    files = {
        line["value"]["path"]: base64.b64decode(line["value"]["content"]).decode() for line in lines
    }
    return path, header["value"], files


def test_a_pull_request_has_all_of_it_and_nothing_that_was_there_is_lost(hub, runs, tmp_path):
    code, out, err = push(hub, tmp_path, runs, "me/mine")
    assert code == 0, err
    assert out.splitlines()[-1] == f"{hub.endpoint}/me/mine/discussions/7"
    path, header, files = sent(hub)
    assert path.startswith("/api/models/me/mine/commit/main") and "create_pr=1" in path
    assert header["parentCommit"] == COMMIT and "scoremode" in header["summary"]
    assert sorted(p.split("/")[0] for p in files) == [
        *(".eval_results", "README.md", "scoremode", "scoremode", "scoremode")
    ]
    card = ModelCard(files["README.md"])
    assert card.data.license == "mit" and card.text.startswith("\n# Mine\n")
    addresses = {r.source_url for r in card.data.eval_results}
    assert addresses == {
        f"{hub.endpoint}/me/mine/blob/main/scoremode/{name}/record.json" for name in "abc"
    }
    assert json.loads(files["scoremode/a/record.json"])["schema"] == "scoremode.record"
    shown = out.splitlines()
    assert any(line.startswith("--- README.md (") for line in shown)
    assert any(set(line) == set("+|- :") for line in shown)
    assert not any(line.startswith("-license") for line in shown)


def test_a_repository_without_a_readme_gets_one(hub, runs, tmp_path):
    code, _, err = push(hub, tmp_path, runs[:1], "me/bare")
    assert code == 0, err
    assert "README.md" in sent(hub)[2] and hub.fetched() == []


@pytest.mark.parametrize(
    ("repo", "refuses", "said"),
    [
        ("me/mine", 403, "me/mine: no pull request was opened: "),
        ("me/none", None, "me/none: can't be read on the hub: "),
        ("a/b/c", None, "a/b/c: "),
    ],
)
def test_a_refusal_is_one_line(repo, refuses, said, hub, runs, tmp_path):
    hub.refuses = refuses
    code, _, err = push(hub, tmp_path, runs[:1], repo)
    (line,) = (line for line in err.splitlines() if "error: " in line)
    assert code in (1, 2) and line.startswith(f"scoremode: error: {said}"), err
    assert hub.commits == []
    assert sum("/commit/" in path for _, path in hub.requests) == (refuses is not None)


@pytest.mark.parametrize("repo", ["me/mine", "mine"])
def test_names_of_repositories(repo):
    check_repo(repo)
    with pytest.raises(UsageError, match="a b/c: "):
        check_repo("a b/c")


def test_what_would_change_is_shown_and_a_record_s_size():
    files = {"README.md": "a\nc\x1b\n", ".eval_results/x.yaml": "- b\n", "s/record.json": "{}"}
    assert changes(files, "a\nb\n").splitlines() == [
        "--- README.md (5 bytes)",
        "@@ -1,2 +1,2 @@",
        " a",
        "-b",
        "+c\\x1b",
        "--- .eval_results/x.yaml (4 bytes)",
        "- b",
        "--- s/record.json (2 bytes)",
    ]

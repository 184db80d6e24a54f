"""A card's pull request, on a stand-in for the hub."""

import base64
import json

import pytest
from huggingface_hub import ModelCard
from support.card_groups import two_groups
from support.hub_stand_in import COMMIT, Hub, Repo, call, serve

from scoremode.errors import UsageError
from scoremode.report.card.hub import changes, check_repo

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
    assert "+| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |" in shown
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
    last = err.splitlines()[-1]
    assert code in (1, 2) and last.startswith(f"scoremode: error: {said}"), err
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

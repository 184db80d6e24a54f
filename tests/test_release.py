"""What a release holds: a wheel and an sdist of hatchling against the tree, their description and
licences, and one version everywhere. `make release-check` installs them, and runs them."""

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt
from packaging.requirements import Requirement

import scoremode

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = "https://example.org/someone/scoremode"


def build(root: Path, out: Path, *what: str, repository: str = "") -> None:
    environment = os.environ | {"SCOREMODE_REPOSITORY": repository}
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out), *what]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The wheel and the sdist of this tree, as a release builds them."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder, repository=REPOSITORY)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def tree() -> set[str]:
    """The files that git has, or would take."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("needs git and a checkout: what a release may hold is what is tracked")
    return {name for name in done.stdout.splitlines() if (ROOT / name).is_file()}


def wheel_metadata(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def test_the_wheel_holds_the_packages_files_and_nothing_else(built, tree):
    with zipfile.ZipFile(built[0]) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
        for name in names:
            assert archive.read(name) == (ROOT / "src" / name).read_bytes(), name
    assert names == {n.removeprefix("src/") for n in tree if n.startswith("src/")}
    # What isn't Python is read by name: a pattern of hatchling's that lost it would show here.
    assert {"scoremode/py.typed", "scoremode/demo/model/model.safetensors"} <= names


def test_the_sdist_holds_tracked_files_alone_and_all_that_tests_and_builds_need(built, tree):
    with tarfile.open(built[1]) as archive:
        assert all(member.isfile() for member in archive), "no links, no folders"
        names = {name.partition("/")[2] for name in archive.getnames()} - {"PKG-INFO"}
    assert names <= tree
    left_out = {n for n in tree - names if not n.startswith((".ci/", ".github/"))}
    assert left_out <= {".dockerignore", ".gitignore", ".pre-commit-config.yaml", "Dockerfile"}


def test_the_sdist_gives_the_wheel_of_the_tree_wherever_it_is_built(built, tmp_path):
    """Without the variable that said which repository released it, too."""
    wheel, sdist = built
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    build(unpacked, tmp_path / "again", "-t", "wheel")
    assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()


def test_licences_are_in_the_wheel(built):
    with zipfile.ZipFile(built[0]) as archive:
        names = [n for n in archive.namelist() if ".dist-info/licenses/" in n]
        texts = {n.partition("/licenses/")[2]: archive.read(n) for n in names}
    assert texts == {name: (ROOT / name).read_bytes() for name in PROJECT["license-files"]}
    assert {"LICENSE", "src/scoremode/report/page/assets/licenses.txt"} == set(texts)


def links(markdown: str) -> list[str]:
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    inner = [child for token in tokens for child in token.children or ()]
    attributes = [t.attrGet("href") or t.attrGet("src") for t in inner]
    return [str(a) for a in attributes if a]


def test_an_index_can_follow_every_link_of_the_description(built):
    metadata = wheel_metadata(built[0])
    text = str(metadata.get_payload())
    assert metadata["Description-Content-Type"] == "text/markdown"
    own = links((ROOT / "README.md").read_text(encoding="utf-8"))
    found = links(text)
    assert len(found) == len(own) > 10
    at_tag = f"{REPOSITORY}/blob/v{scoremode.__version__}/"
    for link in found:
        assert link.startswith("https://")
        if link.startswith(at_tag):
            assert (ROOT / link.removeprefix(at_tag).partition("#")[0]).is_file(), link
    addresses = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert addresses["Source"] == REPOSITORY and addresses["Issues"] == REPOSITORY + "/issues"


def test_a_build_that_no_repository_makes_names_no_address(tmp_path):
    build(ROOT, tmp_path, "-t", "wheel")
    (wheel,) = tmp_path.iterdir()
    metadata = wheel_metadata(wheel)
    assert metadata.get_all("Project-URL") is None
    assert all(link.startswith("https://") for link in links(str(metadata.get_payload())))
    description = str(metadata.get_payload())
    # A page of the repository is named, without a link.
    assert " choosing.md " in description and "docs/choosing.md" not in description
    assert "<picture>" not in description


def test_one_version_everywhere():
    version = scoremode.__version__
    assert PROJECT["dynamic"] == ["version", "readme", "urls"] and "version" not in PROJECT
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest, *_ = re.findall(r"^## \[?(\d[^\] ]*)", changes, re.MULTILINE)
    assert newest == version
    for name in ("README.md", "docs/start.md"):
        said = re.findall(r"Release (\d+\.\d+\.\d+)\b", (ROOT / name).read_text(encoding="utf-8"))
        assert said and set(said) == {version}, name


def test_every_dependency_has_a_lowest_and_an_upper_end():
    extras = PROJECT["optional-dependencies"]
    ours = [*PROJECT["dependencies"], *extras["report"], *extras["vllm"], *extras["lm-eval"]]
    for line in ours:
        assert sorted(s.operator for s in Requirement(line).specifier) == ["<", ">="], line


def test_each_week_the_newest_of_all_is_tested():
    workflow = yaml.safe_load((ROOT / ".github/workflows/newest.yml").read_text())
    # YAML 1.1 takes `on` for a truth value.
    (schedule,) = workflow[True]["schedule"]
    assert re.fullmatch(r"\d+ \d+ \* \* [0-6]", schedule["cron"])
    runs = [step.get("run", "") for step in workflow["jobs"]["newest"]["steps"]]
    assert any(run.startswith("make test-newest ") for run in runs)
    bounds = module("bounds")
    wanted = dict.fromkeys(map(Requirement, bounds.requirements("newest", torch=True)))
    ours = {Requirement(line).name for line in PROJECT["dependencies"]}
    assert ours <= {r.name for r in wanted if not r.specifier}, "no upper end of ours may hide one"


def test_the_pythons_of_the_metadata_are_those_that_ci_runs():
    named = [c.rpartition(" :: ")[2] for c in PROJECT["classifiers"] if ":: Python :: 3." in c]
    assert PROJECT["requires-python"] == ">=" + named[0]
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())
    assert workflow["jobs"]["tests"]["strategy"]["matrix"]["python"] == named


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda p: p.name
)
def test_workflows_pin_what_they_run_and_may_do_little(path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        allowed = job["permissions"]
        assert allowed.items() <= {("contents", "read"), ("pages", "write"), ("id-token", "write")}
        assert job["timeout-minutes"] <= 120
        publishes = False
        for step in job["steps"]:
            if action := step.get("uses"):
                assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
                publishes |= "publish" in action or "deploy" in action
                if action.startswith("actions/checkout@"):
                    assert step["with"]["persist-credentials"] is False
            # An expression in a script is pasted into it, whatever it holds.
            assert "${{" not in step.get("run", ""), step
        assert ("id-token" in allowed) == publishes == ("environment" in job), name
        targets = [w for s in job["steps"] for w in re.findall(r"make ([\w-]+)", s.get("run", ""))]
        for target in targets:
            assert re.search(
                rf"^(?:[\w-]+ )*{target}(?: [\w-]+)*:",
                (ROOT / "Makefile").read_text(),
                re.MULTILINE,
            ), target


def hook():
    return module("metadata_hook")


def module(name: str):
    path = ROOT / "tools" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_links_to_files_are_turned():
    text = "[a](docs/a.md#b) [c](https://d.e/f.md) [g](#h)"
    made = hook().description(text, REPOSITORY, "1.2.3")
    assert made == f"[a]({REPOSITORY}/blob/v1.2.3/docs/a.md#b) [c](https://d.e/f.md) [g](#h)"
    assert hook().description(text, "", "1.2.3") == "a [c](https://d.e/f.md) [g](#h)"

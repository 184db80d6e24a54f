"""The GitHub Action: its steps as a runner runs them, but for those that install, cache and upload."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from support.junit import read_junit

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = ACTION["runs"]["steps"]
IDS = [step.get("id") for step in STEPS]


class Runner:
    """What a runner gives to the steps of a job: a temporary folder, outputs and a summary.

    - `steps`: the outputs of each step that ran; `said`: what the last one printed, `summary` what it
      added to the job's.
    """

    def __init__(self, folder: Path):
        self.temp, self.work = folder / "temp", folder / "work"
        self.work.mkdir()
        self.temp.mkdir()
        (self.temp / "scoremode").symlink_to(Path(sys.executable).parents[1])
        self.steps: dict[str, dict[str, str]] = {}
        self.said = self.summary = ""

    def step(self, name: str, **inputs: str) -> int:
        """The exit code of the step of this id."""
        (step,) = (step for step in STEPS if step.get("id") == name)
        given = {key: str(of.get("default", "")) for key, of in ACTION["inputs"].items()}
        given |= {key.replace("_", "-"): value for key, value in inputs.items()}
        outputs, summary = self.temp / "outputs", self.temp / "summary"
        for file in (outputs, summary):
            file.write_text("")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.work,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ
            | {key: self.evaluated(value, given) for key, value in step.get("env", {}).items()}
            | {
                "RUNNER_TEMP": str(self.temp),
                "GITHUB_ACTION_PATH": str(ROOT),
                "GITHUB_OUTPUT": str(outputs),
                "GITHUB_STEP_SUMMARY": str(summary),
            },
        )
        self.said, self.summary = done.stdout, summary.read_text()
        lines = outputs.read_text().splitlines()
        self.steps[name] = dict(line.split("=", 1) for line in lines)
        return done.returncode

    def outputs(self) -> dict[str, str]:
        """The action's."""
        return {name: self.evaluated(of["value"]) for name, of in ACTION["outputs"].items()}

    def evaluated(self, value: str, inputs: Mapping[str, str] | None = None) -> str:
        """A value with its expressions evaluated: the first that is there of `a || b`."""

        def found(expression: str) -> str:
            where, *names = expression.strip().split(".")
            if where == "inputs":
                return (inputs or {})[names[0]]
            step, outputs, name = names
            assert (where, outputs) == ("steps", "outputs") and step in IDS
            return self.steps.get(step, {}).get(name, "")

        def one(expressions: re.Match[str]) -> str:
            return next(filter(None, map(found, expressions[1].split("||"))), "")

        return re.sub(r"\$\{\{(.*?)\}\}", one, value)


TEXT = {"text": "eval.txt", "context_length": "64"}


@pytest.fixture(scope="module")
def measured(base, text, tmp_path_factory) -> Runner:
    """A job that has measured the base."""
    runner = Runner(tmp_path_factory.mktemp("job"))
    (runner.work / "eval.txt").write_text(text, encoding="utf-8")
    for name in ("base", "reference"):
        assert runner.step(name, **TEXT, reference=str(base)) == 0, runner.said
    assert runner.steps["base"]["folder"] == f"{runner.temp}/{runner.steps['base']['key']}"
    return runner


@pytest.fixture
def runner(measured) -> Runner:
    """The same job before its quants are measured."""
    for name in ("kld", "verify"):
        measured.steps.pop(name, None)
    measured.steps["reference"] = {"exit-code": "0"}
    return measured


def test_a_missed_gate_fails_the_job_and_is_in_the_summary(runner, base, quant):
    gates = "\n--min-top1 1%\n--max-kld 1e-9\n"
    assert runner.step("kld", **TEXT, quants=f"{quant}\n\n{base}\n", gates=gates) == 4
    outputs = runner.outputs()
    assert outputs["exit-code"] == "4", runner.said
    assert Path(outputs["report"]).stat().st_size > 100_000
    rows = [line for line in runner.summary.splitlines() if "| MISSED, by a value without" in line]
    assert len(rows) == 1 and f"| {quant.name} | --max-kld 1e-9 | value | 0." in rows[0]
    assert "| --min-top1 1% |" in runner.summary and "    scoremode" not in runner.summary


def test_each_use_has_the_runs_of_its_own_quants_alone(runner, quant):
    folders = []
    for _ in range(2):
        assert runner.step("kld", **TEXT, quants=str(quant), gates="--max-kld 1e9") == 0
        assert runner.outputs()["exit-code"] == "0", runner.said
        folders.append(Path(runner.steps["kld"]["runs"]))
    assert len({*folders}) == 2 and {folder.parent for folder in folders} == {runner.temp}
    assert "- gate: --max-kld 1e+09: " in runner.summary
    assert [file.name for file in runner.work.iterdir()] == ["eval.txt"]


def test_a_quant_that_fails_hides_no_other(runner, quant):
    quants = f"no-such-folder\n{quant}"
    assert runner.step("kld", **TEXT, quants=quants, gates="--max-kld 1e-9") == 1
    outputs = runner.outputs()
    assert outputs["exit-code"] == "1" and Path(outputs["report"]).exists(), runner.said
    for words in (f"| {quant.name} | --max-kld 1e-9 | ", "    scoremode: no-such-folder: error: "):
        assert words in runner.summary and words in runner.said


def test_gates_are_an_artifact_for_ci_too(runner, base, quant):
    assert runner.step("kld", **TEXT, quants=f"{quant}\n{base}", gates="--max-kld 1e-9") == 4
    file = Path(runner.steps["kld"]["runs"]) / "junit.xml"
    found = read_junit(file.read_text())
    # The base's folder has a name that says nothing: its parent's is its label.
    assert [(of, outcome) for of, _, outcome, _ in found] == [
        (quant.name, "failure"),
        (base.parent.name, "passed"),
    ]
    (upload,) = (s["with"]["path"] for s in STEPS if "upload-artifact" in s.get("uses", ""))
    assert upload == "${{ steps.kld.outputs.runs }}"


def test_engines_are_verified_on_each_quant(runner, base, quant):
    assert runner.step("kld", **TEXT, quants=str(quant), gates="--max-kld 1e9") == 0
    both = f"{quant}\n\n{base}"
    assert runner.step("verify", **TEXT, quants=both, engines="torch", dtype="float32") == 0
    assert runner.outputs()["exit-code"] == "0", runner.said
    runs = Path(runner.steps["kld"]["runs"])
    for number, model in ((1, quant), (2, base)):
        ((of, name, outcome, _),) = read_junit((runs / f"engines-{number}.junit.xml").read_text())
        assert (of, name, outcome) == (str(model), "torch - reference", "passed")
        assert f"- model: {model}" in runner.summary
    assert runner.summary.count("proves that it repeats, no more") == 2


@pytest.mark.parametrize(("gates", "code"), [("--max-kld 1e9", "1"), ("--max-kld 1e-9", "4")])
def test_engines_that_fail_are_told_of_and_hide_no_missed_gate(gates, code, runner, quant):
    runner.step("kld", **TEXT, quants=str(quant), gates=gates)
    engines = "torch@/no/such"
    assert runner.step("verify", **TEXT, quants=str(quant), engines=engines) == 1
    assert runner.outputs()["exit-code"] == code
    assert "    scoremode: error: /no/such: is no Python" in runner.summary
    (step,) = (step for step in STEPS if step.get("id") == "verify")
    assert step["if"].startswith("${{ always() && inputs.engines && ")


def test_what_cannot_be_measured_is_named_with_its_exit_code(runner, base):
    assert runner.step("kld", **TEXT, quants="no-such-folder") == 1
    assert runner.outputs() == {"exit-code": "1", "report": ""} and runner.steps["kld"]["runs"]
    assert "no-such-folder" in runner.summary


def test_a_base_that_fails_ends_the_job_with_its_exit_code(runner, tmp_path):
    assert runner.step("reference", **TEXT, reference=str(tmp_path), protocol="none") == 2
    assert runner.outputs() == {"exit-code": "2", "report": ""} and "protocol 'none'" in runner.said


@pytest.mark.parametrize(
    ("gates", "words"),
    [
        (" \n", "gates: no limit is given, such as --max-kld 0.05"),
        ("--margin 0.02\n--quiet", "gates: no limit is given"),
        ("--gate-on upper", "there is no gate to judge"),
        ("--max-kdl 0.05", "--max-kdl"),
    ],
)
def test_a_job_without_a_limit_is_refused_before_anything_is_measured(tmp_path, gates, words):
    runner = Runner(tmp_path)
    assert runner.step("gates", gates=gates) == 2 and words in runner.said
    assert runner.outputs()["exit-code"] == "2"
    assert IDS.index("install") < IDS.index("gates") < IDS.index("base")


def test_a_job_with_a_limit_goes_on(tmp_path):
    runner = Runner(tmp_path)
    assert runner.step("gates") == runner.step("gates", gates="--margin 0.02\n--min-top1=90%") == 0
    assert (runner.said, runner.outputs()["exit-code"]) == ("", "")


@pytest.mark.parametrize(
    "configured", ["", "extra-index-url = https://mirror/", "index-url = https://m/"]
)
def test_the_callers_indexes_are_not_replaced(tmp_path, monkeypatch, configured):
    """pip's configuration is read by pip; nothing is installed."""
    runner, python = Runner(tmp_path), tmp_path / "python3"
    (tmp_path / "temp" / "scoremode").unlink()
    (tmp_path / "pip.conf").write_text(f"[global]\n{configured}\n")
    python.write_text(f"""#!/bin/bash
case "$*" in
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python";;
  *install*) echo "install, ${{PIP_EXTRA_INDEX_URL-none}}";;
  *) exec {sys.executable} "$@";;
esac
""")
    python.chmod(0o755)
    # There is no GPU.
    (tmp_path / "nvidia-smi").write_text("#!/bin/bash\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    for name in [*os.environ]:
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    # The null device leaves out this machine's own.
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf") if configured else os.devnull)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert runner.step("install") == 0, runner.said
    own = "none" if configured else "https://download.pytorch.org/whl/cpu"
    assert runner.said == f"install, {own}\n"


def test_both_commands_are_given_all_that_makes_the_plan():
    scripts = {
        step["id"]: step for step in STEPS if step.get("id") in ("reference", "kld", "verify")
    }
    for step in scripts.values():
        assert len(scripts) == 3
        for flag in ('-f "$TEXT"', '--protocol "$PROTOCOL"', '-c "$CONTEXT_LENGTH"'):
            assert flag in step["run"]
        assert step["env"]["DTYPE"] == "${{ inputs.dtype }}" and '--dtype "$DTYPE"' in step["run"]


def test_a_base_is_cached_under_all_that_moves_its_predictions(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("action_key", ROOT / "tools" / "action_key.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    file, folder = tmp_path / "other.txt", tmp_path / "base"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"1")
    file.write_text("a")
    inputs = {"REFERENCE": str(folder), "TEXT": str(file), "PROTOCOL": "disjoint"}
    inputs |= {"CONTEXT_LENGTH": "512", "DTYPE": "auto"}

    def key(**changed: str) -> str:
        for name, value in (inputs | changed).items():
            monkeypatch.setenv(name, value)
        return tool.key()

    keys = [key(), key(PROTOCOL="chat"), key(CONTEXT_LENGTH="256"), key(REFERENCE="org/name")]
    keys.append(key(DTYPE="float32"))
    (folder / "model.safetensors").write_bytes(b"2")
    keys.append(key())
    file.write_text("b")
    keys.append(key())
    # A snapshot of the hub's is a folder of links.
    (tmp_path / "weights").write_bytes(b"3")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(tmp_path / "weights")
    keys.append(key())
    (tmp_path / "weights").write_bytes(b"4")
    keys.append(key())
    parts = [tmp_path / f"m-0000{part}-of-00002.gguf" for part in (1, 2)]
    for part in parts:
        part.write_bytes(b"1")
    keys.append(key(REFERENCE=str(parts[0])))
    parts[1].write_bytes(b"2")
    keys.append(key(REFERENCE=str(parts[0])))
    unchanged = key()
    own = tool.versions()
    for name, other in (("torch", "0"), ("scoremode", "0"), ("platform", "linux riscv64")):
        monkeypatch.setattr(tool, "versions", lambda new=own | {name: other}: new)
        keys.append(key())
    monkeypatch.setattr(tool, "versions", lambda: own)
    assert len(set(keys)) == len(keys) and unchanged == key() == keys[8]
    (tmp_path / "source").mkdir()
    monkeypatch.setattr(tool.scoremode, "__file__", str(tmp_path / "source" / "__init__.py"))
    assert key() not in keys


def test_a_base_is_kept_before_anything_can_miss_a_gate():
    uses = [step.get("uses", "").partition("@")[0] for step in STEPS]
    save = uses.index("actions/cache/save")
    assert IDS.index("cache") < save - 1 == IDS.index("reference") and save < IDS.index("kld")
    assert STEPS[save]["with"] == STEPS[IDS.index("cache")]["with"]


def test_inputs_reach_scripts_as_variables_and_every_action_is_pinned():
    for step in STEPS:
        assert "${{" not in step.get("run", ""), step
        # In a container the paths of expressions are those of its host.
        assert not re.search(r"github\.action_path|runner\.temp", str(step)), step
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w/-]+@[0-9a-f]{40}", step["uses"])
    assert not any("setup-python" in step.get("uses", "") for step in STEPS)


def test_the_example_of_the_docs_gives_what_it_asks_for():
    page = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    workflow = yaml.safe_load(example)
    # YAML 1.1 reads `on` as true. A cache that a pull request saves is its own alone.
    assert workflow[True]["push"] == {"branches": ["main"]} and "pull_request" in workflow[True]
    steps = workflow["jobs"]["kld"]["steps"]
    (given,) = (step["with"] for step in steps if "scoremode@" in step.get("uses", ""))
    required = {name for name, of in ACTION["inputs"].items() if of.get("required")}
    assert required <= given.keys() <= ACTION["inputs"].keys()
    for name in ACTION["inputs"]:
        assert f"`{name}`" in page

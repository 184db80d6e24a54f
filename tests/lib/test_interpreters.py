"""Work in another Python: how it is found, and what comes back from it."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import HANG, wait_for, wait_for_ends

import scoremode
from scoremode.errors import EngineError, ProtocolError
from scoremode.lib import processes
from scoremode.lib.interpreters import Interpreter, find_interpreter, run_elsewhere

SOURCE = Path(scoremode.__file__).parent
PATHS = {"PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
def environment(tmp_path) -> Path:
    """The folder of an environment whose Python runs this one with a path of its own, `site`."""
    folder = tmp_path / "other env"
    (folder / "bin").mkdir(parents=True)
    (folder / "site").mkdir()
    python = folder / "bin" / "python"
    python.write_text(f"#!/bin/sh\nPYTHONPATH='{folder}/site' exec {sys.executable} -s \"$@\"\n")
    python.chmod(0o755)
    return folder


def run(work: str, *args: object, receive=lambda _: None, **environment: str) -> object:
    variables = PATHS | environment
    own = Interpreter.own()
    return run_elsewhere("work", own, work, *args, environment=variables, receive=receive)


def test_result_and_messages_come_back_and_prints_go_to_stderr(capfd):
    messages: list[int] = []
    assert run("support.child_work:double", 3, receive=messages.append) == 6
    assert messages == [0, 1, 2]
    out, err = capfd.readouterr()
    assert out == "" and "to stdout" in err


def test_variables_are_the_childs_alone_and_its_programs_come_first(monkeypatch):
    monkeypatch.delenv("CHILD_ALONE", raising=False)
    assert run("support.child_work:variable", "CHILD_ALONE", CHILD_ALONE="1") == "1"
    assert "CHILD_ALONE" not in os.environ
    path = run("support.child_work:variable", "PATH")
    assert isinstance(path, str)
    assert path.split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_errors_are_lines_with_a_label(capfd):
    with pytest.raises(ProtocolError, match=r"^work: stride 0: must be at least 1$"):
        run("support.child_work:refuse")
    with pytest.raises(EngineError, match=r"^work: RuntimeError: two lines \(line \d+ of child_w"):
        run("support.child_work:break_down")
    with pytest.raises(EngineError, match="work: its process ended with exit code 7"):
        run("support.child_work:exit_with", 7)
    assert "Traceback" not in capfd.readouterr().err


def test_what_is_no_json_does_not_come_back():
    with pytest.raises(EngineError, match=r"work: TypeError: .*not JSON serializable"):
        run("support.child_work:set_of", 3)


@pytest.mark.parametrize("then", ["return", "sleep"])
def test_no_process_is_left_behind(then, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_GRACE", 0.5)
    seen: list[list[int]] = []

    def receive(message: list[int]) -> None:
        seen.append(message)
        if then == "sleep":
            raise KeyError

    arguments = "support.child_work:start_another_and", then, str(tmp_path)
    if then == "sleep":
        with pytest.raises(KeyError):
            run(*arguments, receive=receive)
    else:
        run(*arguments, receive=receive)
    wait_for_ends(tuple(seen[0]))


def test_it_ends_when_its_parent_is_killed(tmp_path):
    script = (
        "from scoremode.lib.interpreters import *\n"
        "run_elsewhere('work', Interpreter.own(), 'support.child_work:start_another_and', 'sleep', "
        f"{str(tmp_path)!r}, receive=print)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], env=os.environ | PATHS)
    ids = tmp_path / "ids"
    wait_for(lambda: ids.exists() and len(ids.read_text().split()) == 2, parent)
    parent.send_signal(signal.SIGKILL)
    parent.wait(HANG)
    wait_for_ends(tuple(map(int, ids.read_text().split())))


def test_an_environment_is_found_by_its_folder_and_by_its_python(environment):
    (environment / "site" / "scoremode").symlink_to(SOURCE)
    by_folder, by_python = map(find_interpreter, (environment, environment / "bin" / "python"))
    assert by_folder == by_python and by_folder.environment == environment
    assert by_folder.python == sys.version.split()[0]


def test_another_source_of_the_same_version_is_refused(environment):
    shutil.copytree(SOURCE, environment / "site" / "scoremode")
    assert find_interpreter(environment).path == environment / "bin" / "python"
    with (environment / "site" / "scoremode" / "errors.py").open("a") as file:
        file.write("# changed\n")
    with pytest.raises(EngineError, match=r"has another source of scoremode, sha256 .*pip install"):
        find_interpreter(environment)


def test_another_version_is_refused_by_its_number(environment):
    shutil.copytree(SOURCE, environment / "site" / "scoremode")
    init = environment / "site" / "scoremode" / "__init__.py"
    text = init.read_text().replace(f'"{scoremode.__version__}"', '"99.1"')
    init.write_text(text)
    with pytest.raises(EngineError, match=r"has another scoremode \(99\.1, and here .*pip install"):
        find_interpreter(environment)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is no Python: name an interpreter or its environment's folder"),
        ("#!/bin/sh\necho words\n", "is no Python, or a broken one: it says nothing"),
        ("#!/bin/sh\necho 'bad: \x1b option' >&2; exit 2\n", r"it says bad: \\x1b option"),
        ("#!/nonexistent/python\n", "does not start: No such file"),
        (f'#!/bin/sh\nexec {sys.executable} -IS "$@"\n', "can't import scoremode .*pip install"),
    ],
)
def test_what_is_no_python_with_scoremode_is_one_line(content, words, environment, tmp_path):
    python = environment / "bin" / "python"
    python.unlink()
    if content is not None:
        python.write_text(content)
        python.chmod(0o755)
    with pytest.raises(EngineError, match=words) as found:
        find_interpreter(environment)
    assert str(found.value).startswith(f"{environment}: ") and "\n" not in str(found.value)

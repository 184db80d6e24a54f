"""Work in another process: its result, its failures, and what it leaves behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import child_work
from support.waiting import HANG, wait_for, wait_for_ends

from scoremode.errors import EngineError, ProtocolError
from scoremode.lib import processes
from scoremode.lib.processes import run_apart


def ignore(_: object) -> None:
    pass


def test_result_and_messages_come_back_and_prints_go_to_stderr(capfd):
    messages: list[int] = []
    assert run_apart("work", child_work.double, 3, receive=messages.append) == 6
    assert messages == [0, 1, 2]
    out, err = capfd.readouterr()
    assert out == "" and "to stdout" in err


def test_an_error_of_ours_keeps_its_class_and_gets_a_label(capfd):
    with pytest.raises(ProtocolError, match=r"^work: stride 0: must be at least 1$"):
        run_apart("work", child_work.refuse, receive=ignore)
    assert "Traceback" not in capfd.readouterr().err


def test_any_other_error_is_one_line_that_says_where(capfd):
    expected = r"^work: RuntimeError: two lines \(line \d+ of child_work\.py\)$"
    with pytest.raises(EngineError, match=expected):
        run_apart("work", child_work.break_down, receive=ignore)
    assert "Traceback" not in capfd.readouterr().err


def test_an_end_without_a_result_is_an_error():
    with pytest.raises(EngineError, match="work: its process ended with exit code 7"):
        run_apart("work", child_work.exit_with, 7, receive=ignore)
    with pytest.raises(
        EngineError, match="work: its process was ended by SIGKILL, as a system out of"
    ):
        run_apart("work", child_work.kill_itself, receive=ignore)


class Stop(Exception):
    pass


@pytest.mark.parametrize("then", ["return", "fail", "exit"])
def test_no_process_is_left_behind(then, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_GRACE", 0.5)
    seen: list[tuple[int, ...]] = []
    arguments = (child_work.start_another_and, then, str(tmp_path))
    if then == "return":
        run_apart("work", *arguments, receive=seen.append)
    else:
        with pytest.raises(EngineError):
            run_apart("work", *arguments, receive=seen.append)
    assert len(seen) == 1
    wait_for_ends(seen[0])


@pytest.mark.parametrize("then", ["sleep", "ignore"])
def test_an_error_here_ends_the_work_there(then, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_GRACE", 0.5)
    seen: list[tuple[int, ...]] = []

    def receive(message: tuple[int, ...]) -> None:
        seen.append(message)
        raise Stop

    with pytest.raises(Stop):
        run_apart("work", child_work.start_another_and, then, str(tmp_path), receive=receive)
    wait_for_ends(seen[0])


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_this_process_ends_the_work(how, tmp_path):
    program = (
        "import sys\nfrom support import child_work\n"
        "from scoremode.lib import processes\n"
        "processes._GRACE = 0.5\n"
        "if __name__ == '__main__':\n"
        f"    processes.run_apart('work', child_work.start_another_and, 'sleep', {str(tmp_path)!r},"
        " receive=print)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(program)
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    ids = tmp_path / "ids"
    wait_for(lambda: ids.exists() and len(ids.read_text().split()) == 2, parent)
    parent.send_signal(how)
    parent.communicate(timeout=HANG)
    wait_for_ends(tuple(map(int, ids.read_text().split())))


def test_what_fails_while_a_child_imports_its_work_is_one_error(tmp_path, monkeypatch, capfd):
    (tmp_path / "work_of_a_child.py").write_text(
        "import multiprocessing\n"
        "if multiprocessing.parent_process(): raise RuntimeError('not in a child')\n"
        "def work(send): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import work_of_a_child  # pyright: ignore[reportMissingImports]

    with pytest.raises(EngineError, match="RuntimeError: not in a child"):
        run_apart("a child", work_of_a_child.work, receive=print)
    assert capfd.readouterr().err == ""

"""Ctrl-C and SIGTERM at any moment of a command: its exit code, one line, and nothing else."""

import os
import signal
import subprocess
import sys
import time

import pytest
from support.waiting import HANG

ENDS = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "terminated")}

# Says when its first line runs: what comes before is Python's own start.
PROGRAM = """
import os, sys
from scoremode.cli.program import program
os.write({pipe}, b"x")
sys.exit(program())
"""


@pytest.fixture(scope="module")
def run(demo, tmp_path_factory):
    """Runs a short measurement that gets `number` after some seconds; returns how it ended, and how
    many seconds it took."""
    folder = tmp_path_factory.mktemp("runs")
    text = folder / "text"
    text.write_text((demo / "heldout.txt").read_text(encoding="utf-8")[:3000], encoding="utf-8")

    def run(number: signal.Signals | None, seconds: float) -> tuple[int, str, float]:
        reading, writing = os.pipe()
        arguments = ["ppl", str(demo / "model"), "-f", str(text), "-c", "128", "--device", "cpu"]
        with subprocess.Popen(
            [
                sys.executable,
                "-c",
                PROGRAM.format(pipe=writing),
                *arguments,
                "-o",
                str(folder / "o"),
            ],
            pass_fds=[writing],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            os.close(writing)
            os.read(reading, 1)
            os.close(reading)
            begin = time.monotonic()
            if number is not None:
                time.sleep(seconds)
                process.send_signal(number)
            _, err = process.communicate(timeout=HANG)
        return process.returncode, err, time.monotonic() - begin

    return run


# A function that is called and hasn't begun.
FIRST_LINE = "in program\n    def program() -> int:"


def test_an_interrupt_at_any_moment_is_one_line(run):
    code, err, whole = run(None, 0)
    assert (code, err) == (0, "")
    moments = [(signal.SIGINT, s) for s in (0, 0.01, 0.1)]
    moments += [(signal.SIGINT, whole * share) for share in (0.4, 0.9)]
    moments += [(signal.SIGTERM, whole / 2)]
    interrupted = 0
    for number, seconds in moments:
        code, err, _ = run(number, seconds)
        if '"<string>"' in err and ("scoremode" not in err or FIRST_LINE in err):
            continue  # before our first line, on a busy machine: it is Python's own to tell
        ended = (code, err) == (ENDS[number][0], f"scoremode: {ENDS[number][1]}\n")
        assert ended or (code, err) == (0, ""), (number, seconds, code, err)
        interrupted += ended
    # The last ones may come too late on a machine whose other work has ended.
    assert interrupted >= 3


SWALLOWED = """
import os, signal, sys, time
from scoremode.cli import main, plan
def run(spec, session):
    {body}
plan.Plan.run = run
sys.exit(main.main(["plan"]))
"""
BODIES = {
    "turned into another error": """
    try: os.kill(os.getpid(), {number})
    except KeyboardInterrupt: raise TypeError("could not determine the shape") from None
""",
    "raised where nothing can be": """
    class Ends:
        def __del__(self): os.kill(os.getpid(), {number})
    Ends()
    time.sleep(3600)
""",
    "caught, and another one behind it": """
    try: os.kill(os.getpid(), {number})
    except KeyboardInterrupt: pass
    os.kill(os.getpid(), {number})
    time.sleep(3600)
""",
    "in the midst of an exit": """
    try: os.kill(os.getpid(), {number})
    except KeyboardInterrupt: sys.exit("a library's words")
""",
}


@pytest.mark.parametrize("how", BODIES)
@pytest.mark.parametrize("number", ENDS)
def test_one_that_a_library_swallows_is_one_still(how, number):
    program = SWALLOWED.format(body=BODIES[how].format(number=int(number)).strip())
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG, check=False
    )
    code, said = ENDS[number]
    assert (done.returncode, done.stderr) == (code, f"scoremode: {said}\n")


# From the byte on nothing returns to the interpreter: its own handler never has its turn.
HELD = """
    from collections import deque
    from itertools import chain, repeat
    deque(chain(map(os.write, [{pipe}], [b"x"]), repeat(1)), maxlen=0)
"""
# The end waits for a thread that never ends.
WAITS = """
    import threading
    threading.Thread(target=threading.Event().wait).start()
    os.write({pipe}, b"x")
    os.kill(os.getpid(), {number})
"""


@pytest.mark.parametrize("body", [HELD, WAITS])
def test_a_second_ctrl_c_is_the_systems_own_where_python_has_no_turn(body):
    reading, writing = os.pipe()
    program = SWALLOWED.replace("from scoremode.cli import main, plan", "{head}").replace(
        'sys.exit(main.main(["plan"]))', 'sys.argv[1:] = ["plan"]; sys.exit(program())'
    )
    head = "from scoremode.cli import plan; from scoremode.cli.program import program"
    body = body.format(pipe=writing, number=int(signal.SIGINT)).strip()
    with subprocess.Popen(
        [sys.executable, "-c", program.format(head=head, body=body)],
        pass_fds=[writing],
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(writing)
        assert os.read(reading, 1) == b"x"
        os.close(reading)
        # Two that come before either is taken are one; a guard against hanging alone.
        for _ in range(600):
            process.send_signal(signal.SIGINT)
            try:
                process.wait(0.1)
                break
            except subprocess.TimeoutExpired:
                continue
        else:
            process.kill()
    assert process.returncode == -signal.SIGINT

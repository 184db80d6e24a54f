"""Ctrl-C and SIGTERM at any moment of a command: its exit code, one line, and nothing else."""

import os
import signal
import subprocess
import sys

import pytest
from support.waiting import HANG

ENDS = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "terminated")}

# Sends itself a signal at the first event of its kind that is about such a thing.
PROGRAM = """
import os, sys
event, about, number = sys.argv[1:4]
sent = []
def hook(name, found):
    if name == event and about in str(found[0]) and not sent:
        sent.append(os.kill(os.getpid(), int(number)))
from scoremode.__main__ import program
sys.argv[1:] = sys.argv[4:]
sys.addaudithook(hook)
sys.exit(program())
"""


@pytest.mark.parametrize(
    ("event", "about", "number", "kept"),
    [
        ("import", "argparse", signal.SIGINT, ""),
        ("import", "numpy", signal.SIGINT, ""),
        ("import", "torch", signal.SIGINT, ""),
        ("import", "transformers", signal.SIGTERM, ""),
        ("open", "model.safetensors", signal.SIGINT, ""),
        ("os.rename", "record.json", signal.SIGINT,
         ": no pass was written, nothing of the run is kept"),
        ("os.rename", "scores.parquet", signal.SIGTERM,
         ": 16 of 16 windows kept, run the same command again with --resume to go on"),
        # The finished record is written, and has no parts any more.
        ("os.rmdir", "parts", signal.SIGINT,
         ": 16 of 16 windows kept, run the same command again with --resume to go on"),
    ],
)  # fmt: skip
def test_an_interrupt_at_any_moment_is_one_line(event, about, number, kept, demo, tmp_path):
    command = [sys.executable, "-c", PROGRAM, event, about, str(int(number)), "ppl",
               str(demo / "model"), "-f", str(demo / "heldout.txt"), "-c", "128", "--limit", "16",
               "--device", "cpu", "-o", str(tmp_path)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    code, said = ENDS[number]
    assert (done.returncode, done.stderr) == (code, f"scoremode: {said}{kept}\n")


SWALLOWED = """
import os, signal, sys, time
from scoremode.cli import main, measure
def run(spec, session):
    {body}
measure.Plan.run = run
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
    program = SWALLOWED.replace("from scoremode.cli import main, measure", "{head}").replace(
        'sys.exit(main.main(["plan"]))', 'sys.argv[1:] = ["plan"]; sys.exit(program())'
    )
    head = "from scoremode.cli import measure; from scoremode.__main__ import program"
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

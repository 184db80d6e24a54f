"""The program's process: its exit code and its exit handlers."""

import os
import subprocess
import sys


def command(demo, tmp_path, *more):
    model, text = str(demo / "model"), str(demo / "heldout.txt")
    flags = ["-f", text, "-c", "128", "--limit", "2", "--device", "cpu", "-o", str(tmp_path)]
    return [sys.executable, "-m", "scoremode", "ppl", model, *flags, *more]


def test_exit_codes_and_errors_come_through_the_quick_end(demo, tmp_path):
    done = subprocess.run(command(demo, tmp_path, "--stride", "0"), capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("scoremode: error: ")
    assert done.stderr.count("\n") == 1
    wrong = [sys.executable, "-m", "scoremode", "ppl", str(tmp_path / "none"), "--text", "a"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(wrong, capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and done.stderr.startswith("scoremode: error: ")


def test_exit_handlers_run_before_the_quick_end():
    program = (
        "import atexit, sys\n"
        "from scoremode.__main__ import program\n"
        "sys.argv = ['scoremode', 'compare', 'no-such-run']\n"
        "atexit.register(lambda: print('earlier'))\n"
        "code = program()\n"
        "atexit.register(lambda: print('later'))\n"
        "sys.exit(99)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    # The command's own code; a handler of before it belongs to whoever embeds it and is not called.
    assert (done.returncode, done.stdout) == (1, "later\n")

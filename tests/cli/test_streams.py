"""stdin, stdout and stderr that are closed, full, or of another encoding."""

import subprocess
import sys

import pytest
from support.programs import lines_of, program
from support.waiting import HANG


def test_a_closed_or_full_output_is_one_line(plan):
    command = f'"{sys.executable}" -m scoremode {" ".join(plan)}'
    for end, code, said in (
        (">&-", 1, "scoremode: error: stdout: Bad file descriptor\n"),
        ("> /dev/full", 1, "scoremode: error: stdout: No space left on device\n"),
        ("2>&- > /dev/null", 0, ""),
        ("--bos sometimes 2>&-", 2, ""),
        ("--bos sometimes 2> /dev/full", 2, ""),
        ("| head -c 0; exit ${PIPESTATUS[0]}", 0, ""),
    ):
        done = subprocess.run(
            ["bash", "-c", f"{command} {end}"], capture_output=True, text=True, timeout=HANG
        )
        assert (done.returncode, done.stderr) == (code, said), end


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_an_output_that_is_not_utf8_escapes_what_it_lacks(encoding, demo):
    import json

    arguments = ["--dataset-file", "/no/§ €.jsonl"]
    settings = {"PYTHONIOENCODING": encoding, "LC_ALL": "C"}
    code, _, err = program("plan", str(demo / "model"), *arguments, **settings)
    (line,) = lines_of(err)
    assert code == 1 and ("€" in line or "\\u20ac" in line)
    code, out, err = program(
        "plan", str(demo / "model"), "--text", "€ ab" * 90, "-c", "64", "--json", **settings
    )
    assert code == 0 and "plan" in json.loads(out.decode(encoding))

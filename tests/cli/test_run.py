"""Flags of the commands that leave a run: what is refused before anything is read."""

import stat
from pathlib import Path

import pytest
from support.programs import run


@pytest.mark.parametrize(
    "command", ["ppl", "ppl --resume", "kld --reference BASE", "reference", "demo"]
)
def test_an_output_that_is_no_folder_is_refused_before_anything_is_read(command, tmp_path, capsys):
    """`-o /dev/full` answered "remove it, or name another", which root could have done."""
    (tmp_path / "gone").symlink_to("nowhere")
    model = [] if command == "demo" else ["no/model", "--text", "hello"]
    missing = "is a link, and its target nowhere is missing"
    for output, words in (("/dev/full", "is not a folder"), (f"{tmp_path}/gone", missing)):
        code, out, err = run(capsys, *command.split(), *model, "-o", output)
        assert (code, out) == (1, "") and err == f"scoremode: error: -o {output}: {words}\n"
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)

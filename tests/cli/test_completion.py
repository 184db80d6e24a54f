"""What a shell completes by the printed scripts: commands, flags, their values, models and files."""

import io
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from support.programs import error_of, run

from scoremode.cli import main as commands


@pytest.fixture(scope="module")
def scripts(tmp_path_factory) -> dict[str, Path]:
    """Shell → the file of its script, from one process: the parsers are made for each."""
    found = {}
    for shell in ("bash", "zsh", "fish"):
        printed = io.StringIO()
        with redirect_stdout(printed), pytest.raises(SystemExit) as end:
            commands.parsed_command(["--print-completion", shell])
        assert not end.value.code
        found[shell] = tmp_path_factory.mktemp(shell) / "script"
        found[shell].write_text(printed.getvalue(), encoding="utf-8")
    return found


@pytest.fixture
def here(tmp_path) -> Path:
    """A folder with two models, a text and a run."""
    for name in ("a.gguf", "b c.gguf", "text.txt"):
        (tmp_path / name).touch()
    (tmp_path / "runs").mkdir()
    return tmp_path


# A command line, its last word unfinished, and what that may be.
CASES = [
    ("scoremode kl", {"kld"}),
    ("scoremode kld --max-k", {"--max-kld", "--max-kld-p99"}),
    ("scoremode ppl a.gguf --protocol exl3-", {"exl3-s512", "exl3-compare-q", "exl3-qbench"}),
    ("scoremode ppl a.gguf --preset wikitext-1", {"wikitext-103-1", "wikitext-103-2"}),
    ("scoremode kld a.gguf --engine v", {"vllm"}),
    ("scoremode kld --help ", {"all"}),
    ("scoremode --print-completion z", {"zsh"}),
    # Models are folders and GGUF files, each of several; a text is any file, what is written a folder.
    ("scoremode ppl ", {"a.gguf", "b c.gguf", "runs"}),
    ("scoremode kld a.gguf --reference runs b", {"b c.gguf"}),
    ("scoremode ppl a.gguf -f t", {"text.txt"}),
    ("scoremode ppl a.gguf -o ", {"runs"}),
    ("scoremode compare runs ", {"runs"}),
]

BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
complete -p scoremode >/dev/null && _shtab_scoremode
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(("line", "wanted"), CASES)
def test_bash_completes(line, wanted, scripts, here):
    command = ["bash", "-c", BASH, "bash", str(scripts["bash"]), *line.split(" ")]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()) == wanted


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(scripts, here):
    program = f"source {scripts['fish']}\n" + "".join(
        f"echo '>'; complete -C '{line}'\n" for line, _ in CASES
    )
    done = subprocess.run(
        ["fish", "--no-config", "-c", program], cwd=here, capture_output=True, text=True, check=True
    )
    found = [
        {line.partition("\t")[0].rstrip("/") for line in part.splitlines() if line}
        for part in done.stdout.split(">\n")[1:]
    ]
    assert found == [wanted for _, wanted in CASES]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_its_script(scripts):
    subprocess.run(["zsh", "-n", str(scripts["zsh"])], check=True)


def test_zsh_completes_each_of_several_and_no_pattern_alone(scripts):
    """`(*.gguf)` would be qualifiers of a pattern, and `(*):` is of the first of several alone."""
    text = scripts["zsh"].read_text("utf-8")
    assert "'(*.gguf|*.GGUF)'" in text and '"*:a run' in text and '"(*):' not in text
    assert text.startswith("#compdef scoremode\n")


def test_without_its_package_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    code, out, err = run(capsys, "--print-completion", "bash")
    line = "scoremode: error: the package shtab is not installed: pip install shtab"
    assert (code, out, error_of(err)) == (1, "", line)


def test_another_shell_is_refused_with_those_that_there_are(capsys):
    code, _, err = run(capsys, "--print-completion", "ksh")
    assert code == 2 and "bash" in error_of(err) and "fish" in error_of(err)

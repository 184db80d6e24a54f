"""What a user sees while a command works."""

import inspect
import io
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest
from support.waiting import wait_for

from scoremode.cli import screen as screens
from scoremode.cli.screen import Screen, estimate_words
from scoremode.engines.torch.ranks.places import Place
from scoremode.results.statistics.windows import Estimate

BOTH = {"kld": Estimate(0.02341, (0.0227, 0.0241)), "ppl_ratio": Estimate(1.0172, (1.0142, 1.0202))}
STAGES = ("importing", "reading", "planning", "importing torch", "loading", "scoring")


class Terminal(io.StringIO):
    """A stream that says it is a terminal, and keeps all that was written to it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def on_terminal():
    stream = Terminal()
    screen = Screen(stream)
    yield screen, stream
    screen.close()


def in_terminal(arguments: Sequence[str]) -> tuple[int, str]:
    """A command with a terminal of its own: exit code, and all that came."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(arguments, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    came = b""
    while True:
        try:
            assert select.select([ours], [], [], 120)[0], came
            part = os.read(ours, 1 << 16)
        except OSError:  # its end, as Linux says it
            part = b""
        if not part:
            break
        came += part
    os.close(ours)
    return process.wait(60), came.decode().replace("\r\n", "\n")


def ppl(demo, folder, *more: str) -> list[str]:
    arguments = ["ppl", str(demo / "model"), "-f", str(demo / "heldout.txt"), "-c", "128"]
    return [*arguments, "--limit", "20", "--device", "cpu", "-o", str(folder), *more]


def test_a_terminal_shows_every_stage_in_order_and_then_the_table_alone(demo, tmp_path):
    code, came = in_terminal([sys.executable, "-m", "scoremode", *ppl(demo, tmp_path)])
    assert code == 0 and came.startswith("\rimporting (")
    at = [came.index(f"\r{stage}") for stage in STAGES]
    assert at == sorted(at)
    assert re.search(r"ing [█░]+ \d+%( of 2\.56k tokens)?", came), came
    assert re.search(r"ing [█░]{8,} \d+%, \S+ tokens/s, \d+ s left, PPL [\d.]+", came), came
    lines = [left_of(line) for line in came.split("\n")]
    assert re.match(r"(\x1b\[1m)?demo: PPL ", lines[0]) and not any(
        "scoremode:" in line for line in lines
    )


def left_of(line: str) -> str:
    """What a terminal shows of a line in the end."""
    shown = ""
    for part in line.split("\r"):
        shown = part + shown[len(part) :]
    return shown


@pytest.mark.parametrize(
    "command", ["ppl", "kld", "reference", "plan", "inspect", "verify", "compare"]
)
def test_the_first_stage_comes_before_anything_heavy(command, tmp_path):
    program = f"""
import io, os, sys
class Terminal(io.StringIO):
    def isatty(self): return True
    def write(self, text):
        heavy = {{"torch", "transformers", "pyarrow", "numpy", "tokenizers"}} & set(sys.modules)
        print(repr(text), *sorted(heavy), flush=True)
        os._exit(0)
sys.stderr = Terminal()
from scoremode.cli.main import main
more = ["--reference", "/none"] * ({command!r} == "kld") + ["-o", "r"] * ({command!r} == "reference")
text = ["--text", "a"] * ({command!r} not in ("inspect", "compare"))
main([{command!r}, "/none", *more, *text])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    # How many seconds it took is the machine's.
    assert re.fullmatch(r"'\\rimporting \(\d+ s so far\)'\n", done.stdout), done.stdout


def test_without_a_terminal_a_line_comes_with_every_beat():
    stream = io.StringIO()
    screen = Screen(stream, beat=0.05)
    screen.stage("import")
    wait_for(lambda: stream.getvalue().count("\n") >= 2)
    screen.clear()
    time.sleep(0.12)
    before = stream.getvalue()
    time.sleep(0.12)
    screen.close()
    lines = stream.getvalue().splitlines()
    assert set(lines) == {"scoremode: importing torch and transformers (0 s so far)"}
    # When nothing is being done nothing is said.
    assert stream.getvalue() == before


def test_a_beat_is_half_a_minute_and_nothing_comes_before(monkeypatch):
    assert inspect.signature(Screen).parameters["beat"].default == 30
    now = 100.0
    monkeypatch.setattr(screens.time, "monotonic", lambda: now)
    stream = io.StringIO()
    screen = Screen(stream)
    screen.stage("engine")
    now += 29.9
    time.sleep(3 * screens.REDRAW)
    assert stream.getvalue() == ""
    now += 0.1
    while not stream.getvalue():
        time.sleep(0.01)
    screen.close()
    assert stream.getvalue() == "scoremode: loading (30 s so far)\n"


def test_a_command_without_a_terminal_says_its_stage_with_every_beat(demo, tmp_path):
    program = (
        "import sys; from scoremode.cli import main; from scoremode.cli import screen\n"
        "screen.BEAT = 0.3\n"
        "sys.exit(main.main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", program, *ppl(demo, tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and all("\r" not in line for line in lines)
    assert any(line.startswith("scoremode: importing torch and transformers (") for line in lines)
    assert all(line.startswith("scoremode: ") for line in lines)


def test_quiet_is_quiet_on_a_terminal(demo, tmp_path):
    words = [sys.executable, "-m", "scoremode", *ppl(demo, tmp_path, "--quiet")]
    assert in_terminal(words) == (0, "")


def test_rate_and_time_left_are_those_of_this_process(on_terminal, monkeypatch):
    screen, stream = on_terminal
    now = time.monotonic()
    monkeypatch.setattr(screens.time, "monotonic", lambda: now)
    screen.stage("score")
    screen.progress(6000.0, 10_000)  # of a run that goes on: they say nothing of the rate
    screen.stage("write")
    assert left_of(stream.getvalue()) == f"writing {'█' * 18}{'░' * 12} 60% of 10k tokens"
    now += 10
    screen.progress(1000.0, 10_000)
    screen.stage("score")
    assert left_of(stream.getvalue()) == (
        f"scoring {'█' * 21}{'░' * 9} 70%, 100 tokens/s, 30 s left"
    )
    # Between two steps the rate stays, and the time left goes on.
    now += 5
    screen.stage("score")
    assert "100 tokens/s, 25 s left" in left_of(stream.getvalue())
    screen.stage("finish")
    screen.stage("score", "the base")
    assert left_of(stream.getvalue()).rstrip() == "the base: scoring (15 s so far)"


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (
            140,
            "scoring {} 70%, 100 tokens/s, 30 s left, KLD 0.02341 ±3 %, PPL / base ×1.0172 ±0.29 %",
        ),
        (
            101,
            "scoring {} 70%, 100 tokens/s, 30 s left, KLD 0.02341 ±3 %, PPL / base ×1.0172 ±0.29 %",
        ),
        (80, "scoring {} 70%, 100 tokens/s, 30 s left, KLD 0.02341 ±3 %"),
        (61, "scoring {} 70%, 100 tokens/s, 30 s left"),
        (41, "scoring {} 70%, 30 s left"),
        (31, "scoring, 70%, 30 s left"),
    ],
)
def test_the_bar_has_the_room_that_the_numbers_leave(columns, line, on_terminal, monkeypatch):
    screen, stream = on_terminal
    now = time.monotonic()
    monkeypatch.setattr(screens.time, "monotonic", lambda: now)
    monkeypatch.setattr(screens, "_columns", lambda _: columns)
    screen.stage("score")
    screen.progress(6000.0, 10_000)
    now += 10
    screen.progress(1000.0, 10_000)
    screen.estimate(BOTH)
    screen.stage("write")
    screen.stage("score")
    shown = left_of(stream.getvalue()).rstrip()
    assert re.sub("[█░]+", "{}", shown) == line
    full, empty = shown.count("█"), shown.count("░")
    # It fills the line up to its greatest length.
    assert len(shown) == columns - 1 or full + empty in (0, 30)
    assert full == int(0.7 * (full + empty))


def test_of_a_long_name_both_ends_are_shown(on_terminal, monkeypatch):
    screen, stream = on_terminal
    monkeypatch.setattr(screens, "_columns", lambda _: 60)
    screen.stage("score", f"{'org' * 30}/model-Q4_K_M.gguf (3 of 8)")
    screen.progress(0.0, 10_000)
    screen.stage("write")
    screen.stage("score", f"{'org' * 30}/model-Q4_K_M.gguf (3 of 8)")
    assert re.fullmatch(
        r"(org)+\w*\.\.\..*\(3 of 8\): scoring, 0% of 10k tokens",
        left_of(stream.getvalue()).strip(),
    )


def test_what_else_is_counted_has_a_unit_of_its_own(on_terminal, monkeypatch):
    screen, stream = on_terminal
    now = time.monotonic()
    monkeypatch.setattr(screens.time, "monotonic", lambda: now)
    for stage, steps, total, line in (
        ("files", 2.0e9, 8_000_000_000, "hashing files {} 25%, 2GB/s, 3 s left"),
        ("generate", 3.0, 12, "generating {} 25%, 3 replies/s, 3 s left"),
        ("runs", 1.0, 2, "reading the runs {} 50%, 1 runs/s, 1 s left"),
    ):
        screen.stage(stage)
        screen.progress(0, total)
        now += 1
        screen.progress(steps, total)
        wait_for(
            lambda line=line: re.sub("[█░]+", "{}", left_of(stream.getvalue())).rstrip() == line
        )


def test_where_blocks_can_t_be_written_a_bar_is_of_ascii():
    class Latin(Terminal):
        encoding = "latin-1"

    stream = Latin()
    screen = Screen(stream)
    screen.stage("score")
    screen.progress(50.0, 100)
    screen.stage("write")
    screen.close()
    assert f"writing {'#' * 15}{'.' * 15} 50%" in stream.getvalue()


def test_a_notebook_s_line_is_rewritten():
    """Its stream says that it is no terminal, and shows what follows a carriage return in its place."""

    class OutStream(io.StringIO):
        __module__ = "ipykernel.iostream"

    stream = OutStream()
    screen = Screen(stream)
    assert screen.is_terminal and screens._columns(stream) == 100
    screen.stage("score")
    screen.progress(50.0, 100)
    screen.stage("write")
    assert left_of(stream.getvalue()) == f"writing {'█' * 15}{'░' * 15} 50% of 100 tokens"
    screen.close()
    assert left_of(stream.getvalue()).strip() == "" and "\n" not in stream.getvalue()


def test_a_line_that_stays_comes_before_the_one_that_changes(on_terminal):
    screen, stream = on_terminal
    screen.stage("engine")
    screen.line("a notice")
    first, last = stream.getvalue().split("\n")
    assert left_of(first).rstrip() == "scoremode: a notice"
    assert left_of(last) == "loading (0 s so far)"


def test_a_line_is_no_wider_than_the_terminal(on_terminal, monkeypatch):
    screen, stream = on_terminal
    monkeypatch.setattr(screens, "_columns", lambda _: 30)
    screen.stage("reading " + "x" * 100)
    assert stream.getvalue() == "\rreading xxxxx... (0 s so far)"


def test_only_the_model_that_was_named_is_said_to_be_read(on_terminal):
    screen, stream = on_terminal
    screen.reads("open", "Q4.gguf", from_hub=False)
    screen.stage("open", "the base")
    assert stream.getvalue() == "\rthe base: reading the model's files (0 s so far)"
    screen.stage("open")
    assert left_of(stream.getvalue()).rstrip() == "reading Q4.gguf (0 s so far)"


def test_a_download_has_a_bar_until_all_is_there(on_terminal, monkeypatch):
    screen, stream = on_terminal
    now = time.monotonic()
    monkeypatch.setattr(screens.time, "monotonic", lambda: now)
    screen.reads("open", "gpt2", from_hub=True)
    screen.stage("open")
    screen.downloaded(0, 4_000_000)
    now += 2
    screen.downloaded(1_000_000, 4_000_000)
    screen.line("a note")
    assert re.search(r"\rfetching gpt2 from the hub [█░]{8,} 25%, 500kB/s, 6 s left$", left(stream))
    screen.downloaded(3_000_000, 4_000_000)
    screen.line("a note")
    assert left(stream).endswith("\rfetching gpt2 from the hub (2 s so far)")


def left(stream: Terminal) -> str:
    return stream.getvalue().rstrip(" ")


def test_a_download_beside_a_stage_that_counts_leaves_it_alone(on_terminal):
    screen, stream = on_terminal
    screen.stage("score")
    screen.progress(0, 1000)
    screen.downloaded(500, 1000)
    screen.line("a note")
    assert " 0% of 1k tokens" in stream.getvalue().rpartition("\n")[2]


def test_a_stream_that_nobody_reads_any_more_ends_nothing():
    class Closed(Terminal):
        def write(self, _):
            raise BrokenPipeError

    screen = Screen(Closed())
    screen.stage("score")
    screen.line("a notice")
    screen.close()


def test_of_several_ranks_the_first_one_shows():
    places = [Place(rank, 4, "torchrun", rank % 2, 2, rank // 2) for rank in range(4)]
    assert [place.is_first for place in places] == [True, False, False, False]


def test_the_running_estimate_stands_behind_rate_and_time_left():
    ppl = {"ppl": Estimate(12.345678, (12.0, 12.7))}
    assert estimate_words(ppl) == ["PPL 12.3457 ±2.9 %"]
    both = ppl | {"ppl_ratio": Estimate(1.02, (1.01, 1.03)), "kld": Estimate(0.0234567, None)}
    assert estimate_words(both) == ["KLD 0.02346", "PPL / base ×1.0200 ±0.98 %"]
    stream = Terminal()
    screen = Screen(stream)
    assert screen.is_terminal
    screen.stage("score")
    screen.progress(0.0, 1000)
    screen.estimate(ppl)
    screen.progress(100.0, 1000)
    wait_for(lambda: stream.getvalue().endswith(" left, PPL 12.3457 ±2.9 %"))
    screen.stage("finish")
    assert "PPL" not in left_of(stream.getvalue())
    screen.close()
    assert not Screen(io.StringIO(), hidden=True).is_terminal


def test_what_a_name_does_to_a_terminal_is_written_out():
    stream = Terminal()
    screen = Screen(stream)
    screen.stage("score", "a\x1b[2J\nb")
    screen.line("c\u202ed\x1b[31m")
    assert screen._text().startswith("a\\x1b[2J\\nb: scoring")
    screen.close()
    assert "scoremode: c\\u202ed\\x1b[31m\n" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()

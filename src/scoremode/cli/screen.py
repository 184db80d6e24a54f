"""The display that a user sees while a command works: its stage, then a bar, rate and time left.

On a terminal and in a notebook one line that is written again and again; elsewhere (a log, a pipe) a
line every 30 seconds; nothing with --quiet. A thread of its own writes it, so that the seconds go on
while an import or a download keeps the main one. It imports only what Python itself has: the first
stage is on the screen before anything heavy is looked for.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from scoremode.errors import escaped
from scoremode.lib.hub import downloads
from scoremode.startup.clock import StageClock, since_exec

if TYPE_CHECKING:
    from scoremode.engines.torch.ranks.messages import Ranks
    from scoremode.engines.torch.ranks.places import Place
    from scoremode.results.statistics.windows import Estimate

__all__ = ["Screen", "Session", "estimate_words", "shown"]

# Seconds between lines where stderr is no terminal, and between two states of a terminal's line.
BEAT, REDRAW = 30.0, 0.2

_WORDS = {
    "start": "importing",
    "text": "reading the text",
    "open": "reading the model's files",
    "plan": "planning",
    "import": "importing torch and transformers",
    "base": "opening the base",
    "check": "checking what is there",
    "engine": "loading",
    "score": "scoring",
    "attribute": "attributing",
    "generate": "generating",
    "files": "hashing files",
    "runs": "reading the runs",
    "hash": "hashing the files that were read",
    "write": "writing",
    "noise": "scoring the base again",
    "tokenizer": "comparing token ids with AutoTokenizer's",
    "finish": "computing intervals",
    "end": "ending the engine",
}
# Stages that count, and what. Of tokens a stage goes on where the one before was.
_TOKENS = ("score", "hash", "write", "attribute")
_BYTES = "B"
_COUNTED = {
    **dict.fromkeys((*_TOKENS, "noise"), " tokens"),
    "generate": " replies",
    "files": _BYTES,
    "runs": " runs",
}
# Characters of a bar, and of a line in a notebook.
_BAR, _SHORTEST, _NOTEBOOK = 30, 8, 100


class Screen:
    """The line of one command on `stream`; `hidden` for none.

    Where `stream` is no terminal but a notebook's, it is rewritten all the same.

    - `beat`: seconds between lines, where `stream` is no terminal.
    - `words`: stage → what is shown of it; a stage that isn't there is shown as it is called.
    """

    def __init__(self, stream: TextIO, *, hidden: bool = False, beat: float = BEAT):
        self.words = dict(_WORDS)
        self._stream, self._is_hidden, self._beat = stream, hidden, beat
        self._is_terminal = not hidden and (stream.isatty() or _is_notebook(stream))
        self._estimates: list[str] = []
        self._bar = "█░" if _can_write(stream, "█░") else "#."
        self._begin, self._beats = time.monotonic(), 0
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._stage, self._of, self._drawn = "", "", ""
        self._counter: _Counter | None = None
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="screen", daemon=True)
        if not hidden:
            self._thread.start()

    @property
    def is_terminal(self) -> bool:
        return self._is_terminal

    def stage(self, name: str, of: str = "") -> None:
        """Shows that a stage begins, `of` whatever it is a part of."""
        with self._lock:
            self._stage, self._of = name, escaped(of)
            if name not in _TOKENS:
                self._counter, self._estimates = None, []
            self._draw()

    def reads(self, stage: str, what: str, *, from_hub: bool) -> None:
        """Names what a stage reads."""
        self.words[stage] = f"fetching {what} from the hub" if from_hub else f"reading {what}"

    def progress(self, done: float, total: int) -> None:
        """Counts what the stage counts, such as window tokens: those newly done, out of `total` in all.
        Those of the first call were done before, and say nothing of the rate."""
        with self._lock:
            if self._counter is None or self._counter.total != total:
                self._counter = _Counter(total, done, _COUNTED.get(self._stage, " tokens"))
            else:
                self._counter.add(done)

    def downloaded(self, done: float, total: int) -> None:
        """Counts bytes that come from the hub, as `progress` does, in a stage that counts nothing
        itself: another model's may come while one is scored."""
        with self._lock:
            if self._stage in _COUNTED:
                return
            if self._counter is None or self._counter.total != total:
                self._counter = _Counter(total, done, _BYTES)
            else:
                self._counter.add(done)
            if self._counter.share == 1:
                self._counter = None

    def estimate(self, found: "Mapping[str, Estimate]") -> None:
        """Shows, behind rate and time left, what the scores of the passes done say."""
        with self._lock:
            self._estimates = estimate_words(found)

    def line(self, text: str, *, once: bool = False) -> None:
        """Writes a line that stays; `once`: unless it was written before."""
        if self._is_hidden or (once and text in self._told):
            return
        self._told.add(text)
        with self._lock:
            self._erase()
            # A model's name may hold what does something to a terminal.
            self._put(f"scoremode: {escaped(text)}\n")
            self._draw()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Takes the line away while a block writes to the terminal."""
        with self._lock:
            self._erase()
            yield
            self._draw()

    def clear(self) -> None:
        """Removes the line, and shows nothing until the next stage: something else is to be written."""
        with self._lock:
            self._erase()
            self._stage = ""

    def close(self) -> None:
        """Ends it; the terminal is as if it had never been."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        self.clear()
        self._is_hidden, self._is_terminal = True, False

    def _work(self) -> None:
        wait = REDRAW if self._is_terminal else min(REDRAW, self._beat)
        while not self._end.wait(wait):
            with self._lock:
                if self._is_terminal:
                    self._draw()
                elif (now := int(self._seconds() // self._beat)) > self._beats:
                    self._beats = now
                    if self._stage:
                        self._put(f"scoremode: {self._text()}\n")

    def _seconds(self) -> float:
        return time.monotonic() - self._begin

    def _text(self) -> str:
        words = self._words()
        if (counter := self._counting) is None:
            return f"{words} ({_duration(self._seconds())} so far)"
        return f"{words}, {', '.join(filter(None, counter.words()))}"

    @property
    def _counting(self) -> "_Counter | None":
        """The counter of what goes on."""
        counter = self._counter
        return counter if counter and (self._stage in _COUNTED or counter.unit == _BYTES) else None

    def _words(self) -> str:
        words = self.words.get(self._stage, self._stage)
        if not self._of:
            return words
        # The command's words name its first model, and this is the base or another one.
        return f"{self._of}: {_WORDS['open'] if self._stage == 'open' else words}"

    def _fitted(self, room: int) -> str:
        """The line in at most `room` characters: with a bar where something is counted, behind it what
        there is room for."""
        words = self._words()
        if (counter := self._counting) is None:
            return _elided(f"{words} ({_duration(self._seconds())} so far)", room)
        share, rate, left = counter.words()
        # Of how many is news until there is a rate.
        share = share.partition(" ")[0] if rate else share
        metrics = self._estimates
        for shown in ((rate, left, *metrics), (rate, left, *metrics[:1]), (rate, left), (left,)):
            behind = ", ".join(filter(None, (share, *shown)))
            bar = min(_BAR, room - len(words) - len(behind) - 2)
            if bar >= _SHORTEST:
                full = int(bar * counter.share)
                return f"{words} {self._bar[0] * full}{self._bar[1] * (bar - full)} {behind}"
        behind = f", {', '.join(filter(None, (share, left)))}"
        return f"{_elided(words, max(0, room - len(behind)))}{behind}"[:room]

    def _draw(self) -> None:
        if not self._is_terminal or not self._stage:
            return
        text = self._fitted(_columns(self._stream) - 1)
        if text != self._drawn:
            # Blanks over what was longer: not every terminal knows how to erase.
            self._put(f"\r{text}{' ' * (len(self._drawn) - len(text))}")
            self._drawn = text

    def _erase(self) -> None:
        if self._is_terminal and self._drawn:
            self._put(f"\r{' ' * len(self._drawn)}\r")
            self._drawn = ""

    def _put(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # Nobody reads it any more, which is no reason to stop measuring.
            self._is_hidden, self._is_terminal = True, False


class _Counter:
    """What is done of a `total`; `before`: what had been done when it began; `unit`: of both, as a
    number's ending."""

    def __init__(self, total: int, before: float, unit: str):
        self.total, self.unit = total, unit
        self._done, self._before = before, before
        self._begin = self._last = time.monotonic()

    @property
    def share(self) -> float:
        return min(1.0, self._done / max(1, self.total))

    def add(self, done: float) -> None:
        self._done += done
        self._last = time.monotonic()

    def words(self) -> tuple[str, str, str]:
        """The share, the rate and the time left; the last two are empty as long as nothing tells."""
        share = f"{self.share:.0%} of {_short(self.total)}{self.unit}"
        # As of the last ones: they come in steps, and a rate that fell in between would be none.
        seconds, new = self._last - self._begin, self._done - self._before
        if new <= 0 or seconds <= 0:
            return share, "", ""
        rate = new / seconds
        since = time.monotonic() - self._last
        left = max(0.0, (self.total - self._done) / rate - since)
        return share, f"{_short(rate)}{self.unit}/s", f"{_duration(left)} left"


def estimate_words(found: "Mapping[str, Estimate]") -> list[str]:
    """Such as `PPL 12.34 ±1.2 %`, against a base `KLD 0.02341 ±3.1 %`, `PPL / base ×1.0172 ±0.3 %`."""
    names = {"kld": "KLD", "ppl_ratio": "PPL / base"} if "kld" in found else {"ppl": "PPL"}
    words = []
    for name, label in names.items():
        value, interval = found[name].value, found[name].interval
        number = f"{value:.4g}" if name == "kld" else f"{value:.{_places(value)}f}"
        text = f"{label} {'×' * (name == 'ppl_ratio')}{number}"
        if interval is not None and value:
            half = max(interval[1] - value, value - interval[0])
            text += f" ±{100 * half / abs(value):.2g} %"
        words.append(text)
    return words


def _places(value: float) -> int:
    return 4 if value < 100 else 2 if value < 10_000 else 0


def _short(number: float) -> str:
    """Three digits: 950, 12.3k, 3.13M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def _duration(seconds: float) -> str:
    """A duration as people say it: 7 s, 2 min 5 s, 3 h 20 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _elided(text: str, room: int) -> str:
    """A text without its middle, where it has no room: `(3 of 8)` stands at a name's end."""
    half = max(0, room - 3) // 2
    return text if len(text) <= room else f"{text[:half]}...{text[len(text) - half :]}"


def _is_notebook(stream: TextIO) -> bool:
    """Tells whether a stream is a Jupyter kernel's, which shows what follows a carriage return in place
    of what came before."""
    return any(kind.__module__.startswith("ipykernel.") for kind in type(stream).__mro__)


def _can_write(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _columns(stream: TextIO) -> int:
    # A notebook's may have the number of the terminal that Jupyter was started in.
    if _is_notebook(stream):
        return _NOTEBOOK
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


class Session:
    """One command at work, beside what is asked of it.

    - `command`: its command line, for records; `clock`: its stages, which `screen` shows.
    - `place`: this process's among several, `ranks`: these; None where it is alone.
    """

    def __init__(self, command: tuple[str, ...], screen: Screen, clock: StageClock):
        self.command, self.screen, self.clock = command, screen, clock
        self.place: Place | None = None
        self.ranks: Ranks | None = None

    def agrees(self, question: str) -> bool:
        """Asks on stdout, and tells whether the user says yes; else says that nothing was sent."""
        print(f"{question} [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return True
        self.screen.line("nothing was sent")
        return False


@contextmanager
def shown(
    command: tuple[str, ...] = (), *, hidden: bool = False, before: float | None = None
) -> Iterator[Session]:
    """A session whose screen is there within a block; `hidden`: it shows nothing.

    `before`: seconds that count as the command's already; None for those since the process began.
    """
    screen = Screen(sys.stderr, hidden=hidden, beat=BEAT)
    clock = StageClock(since_exec() if before is None else before, screen.stage)
    screen.stage("start")
    downloads.tell = None if hidden else screen.downloaded
    try:
        yield Session(command, screen, clock)
    finally:
        downloads.tell = None
        screen.close()

"""The quick tests, which `make test` runs, told from the slow ones by measured seconds of CPU.

slow.txt has a line for each slow test function. `make test-times` runs all tests and writes it anew:
the cheapest functions that together stay within BUDGET are quick, each with its share of its file's
fixtures. test_quick.py fails where a name in it is no test's any more, and `make test` at a test that
takes more than LIMIT.
"""

import io
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest

# Seconds of CPU, of a machine with two cores: for all quick tests, and for one of them on any machine.
BUDGET, LIMIT = 270.0, 20.0
# Tests of which a run has to have so many to tell its slowest.
MANY = 1000
TESTS = Path(__file__).parent
LIST = TESTS / "slow.txt"
# In a second of what /proc counts; None where there is no /proc.
TICKS = os.sysconf("SC_CLK_TCK") if sys.platform == "linux" else None


def cpu_seconds() -> float:
    """Of this process, of its children that have ended, and of what support/warm.py has forked.

    It is asked while a test's patches hold, of Path.read_text and os.sysconf among others."""
    seconds = sum(os.times()[:4])
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if server is not None and TICKS is not None:
        with io.FileIO(f"/proc/{server}/stat") as file:
            fields = file.read().rpartition(b")")[2].split()
        seconds += sum(map(int, fields[11:15])) / TICKS
    return seconds


def function_of(node: str) -> str:
    return node.partition("[")[0].removeprefix("tests/")


def slow_functions() -> set[str]:
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return {line.split()[1] for line in lines if line and not line.startswith("#")}


def choose_slow(
    calls: dict[str, float],
    setups: dict[str, float],
    counts: dict[str, int],
    budget: float = BUDGET,
) -> dict[str, float]:
    """Function → seconds, of those that are too many; `setups` are files'."""
    tests: dict[str, int] = defaultdict(int)
    for function, count in counts.items():
        tests[function.partition("::")[0]] += count
    seconds = {}
    for function, count in counts.items():
        file = function.partition("::")[0]
        seconds[function] = calls[function] + setups[file] * count / tests[file]
    left = budget
    slow = {}
    for function in sorted(seconds, key=lambda f: (seconds[f], f)):
        left -= seconds[function]
        if left < 0:
            slow[function] = seconds[function]
    return slow


class Quick:
    """The plugin; conftest.py registers it."""

    def __init__(self, config: pytest.Config):
        self._writes = config.getoption("--write-slow") and not hasattr(config, "workerinput")
        self._limits = "not slow" in config.option.markexpr
        self._slow = slow_functions()
        self._begin = cpu_seconds()
        self._calls: dict[str, float] = defaultdict(float)
        self._setups: dict[str, float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if function_of(item.nodeid) in self._slow:
                item.add_marker(pytest.mark.slow)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._begin = cpu_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
        report = yield
        seconds = cpu_seconds() - self._begin
        self._begin += seconds
        report.user_properties = [("cpu", seconds)]
        if self._limits and call.when == "call" and report.passed and seconds > LIMIT:
            report.outcome = "failed"
            report.longrepr = f"{seconds:.0f} s of CPU: make it cheaper, or a line of {LIST.name}"
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        function, seconds = function_of(report.nodeid), dict(report.user_properties).get("cpu", 0.0)
        if report.when == "call":
            self._calls[function] += seconds
            self._counts[function] += 1
        else:
            self._setups[function.partition("::")[0]] += seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if sum(self._counts.values()) < MANY:
            return
        terminalreporter.section("seconds of CPU")
        total = sum(self._calls.values()) + sum(self._setups.values())
        terminalreporter.line(
            f"{total:7.0f}  all, {sum(self._setups.values()):.0f} of them fixtures"
        )
        for function in sorted(self._calls, key=lambda f: -self._calls[f])[:30]:
            terminalreporter.line(f"{self._calls[function]:7.1f}  {function}")

    def pytest_sessionfinish(self) -> None:
        if not self._writes:
            return
        slow = choose_slow(self._calls, self._setups, self._counts)
        lines = [f"{slow[f]:6.1f}  {f}\n" for f in sorted(slow)]
        about = "# Seconds of CPU and names of the slow test functions, by `make test-times`.\n"
        LIST.write_text(about + "".join(lines), encoding="utf-8")

"""Fixtures that several tests share."""

import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from quick import Quick

from scoremode.engines.torch.device import fix_rounding

# Compiled once, by whoever imports a module first: the tests start hundreds of processes.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Where there is no GPU, Triton's kernels are tested under its interpreter, which has to be asked for
# before the first import of Triton.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Tests compare an engine with modules that compute before any engine is made: all by the rounding that
# an engine on the CPU asks for, which MKL reads at its first product.
fix_rounding()

# A drawn case may take any time: how long says what else the machine does. The environment of the
# vLLM engine has no hypothesis, and no test there draws.
if find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("scoremode", deadline=None, max_examples=50)
    settings.load_profile("scoremode")

# A shell that starts the tests in the background has them ignore SIGINT, and programs that the tests
# interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-slow", action="store_true", help="write slow.txt from this run")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Quick(config))


@pytest.fixture(autouse=True, scope="session")
def no_heartbeat() -> Iterator[None]:
    """In pytest's own process a command says nothing of its stages, however busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scoremode.cli.screen.BEAT", float("inf"))
        yield


@pytest.fixture(scope="module")
def warm_children() -> Iterator[None]:
    """Children of the package's own are forked from a process that has imported all they need."""
    from support.warm import MULTIPROCESSING

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scoremode.lib.processes.multiprocessing", MULTIPROCESSING)
        yield


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real test data. Skips without it, or fails where it is required."""
    folder = os.environ.get("SCOREMODE_DATA")
    if folder:
        return Path(folder)
    if os.environ.get("SCOREMODE_REQUIRE_DATA"):
        pytest.fail("SCOREMODE_REQUIRE_DATA is set and SCOREMODE_DATA is not")
    pytest.skip("needs real test data: set SCOREMODE_DATA")


@pytest.fixture(scope="session")
def demo() -> Path:
    """The package's own demo folder: `model/` and `heldout.txt`."""
    import scoremode.demo

    assert scoremode.demo.__file__
    return Path(scoremode.demo.__file__).parent

"""Verdicts that never come: what the runner has to see by itself."""

import os
import time
from pathlib import Path


def hang(folder: Path) -> str:
    time.sleep(60)
    return "right"


def die(folder: Path) -> str:
    os.abort()


def fail(folder: Path) -> str:
    raise ValueError("nobody expected this")

"""A headless Chromium for the report's page: Debian's, or any on the PATH."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    place = next(filter(None, map(shutil.which, NAMES)), None)
    if place is None:
        pytest.skip(
            "no Chromium on the PATH: `apt-get install chromium`, or `make test-browser` as root"
        )
    from playwright.sync_api import sync_playwright

    # Chromium's own sandbox refuses to run as root.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=place, args=flags)
        yield found
        found.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a page's text from a file; fails at the end if the page logged anything, failed anywhere
    or asked for anything but its own file."""
    said: list[str] = []
    contexts = []

    def open_page(text: str, *, width: int = 1240, **options: Any) -> Any:
        file = tmp_path / "report.html"
        file.write_text(text, encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on(
            "request",
            lambda request: request.url != file.as_uri() and said.append(f"request: {request.url}"),
        )
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached", timeout=30_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []

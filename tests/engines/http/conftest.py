"""A server of the demo model in each dialect, and what is asked of it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.servers import Served, serving

from scoremode.checkpoint.model_files import resolve_local
from scoremode.engines.http.options import HttpOptions
from scoremode.runs.request import Request
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset

LENGTH = 64


@pytest.fixture(scope="session")
def served_by() -> Iterator[dict[str, Served]]:
    import scoremode.demo

    model = Path(scoremode.demo.__file__).parent / "model"  # pyright: ignore[reportArgumentType]
    with serving(model, "vllm") as vllm, serving(model, "sglang") as sglang:
        yield {"vllm": vllm, "sglang": sglang}


@pytest.fixture(params=["vllm", "sglang"])
def served(request, served_by) -> Iterator[Served]:
    found = served_by[request.param]
    before = found.spoil
    yield found
    found.spoil = before
    found.seen.clear()


@pytest.fixture
def asked(demo, served, tmp_path) -> Callable[..., Request]:
    """A run of the served model, with other options where they are given."""
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:3000]

    def request(**options) -> Request:
        return Request(
            model=resolve_local(demo / "model"),
            corpus=from_string(text),
            protocol=preset("disjoint").override(context_length=LENGTH),
            options=HttpOptions(served.url, **options),
            output=tmp_path / "runs",
        )

    return request

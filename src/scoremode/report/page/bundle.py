"""Vega, which draws the charts: its scripts for the page, and its renderer for files.

vl-convert-python, of the Vega project itself, carries both: no node, and nothing is fetched.
"""

import base64
import zlib
from types import ModuleType

from scoremode.errors import UsageError

__all__ = ["EXTRA", "packed", "plotting", "scripts"]

EXTRA = "pip install 'scoremode[report]'"


def plotting() -> ModuleType:
    """The module vl_convert. Raises UsageError with what to install where it is missing."""
    try:
        import vl_convert
    except ImportError as error:
        if error.name != "vl_convert":
            raise
        raise UsageError(
            f"a report needs vl-convert-python, which draws its charts: {EXTRA}"
        ) from None
    return vl_convert


def scripts() -> str:
    """JavaScript that makes `vega` and `vegaEmbed` names of the page."""
    bundle: str = plotting().javascript_bundle("window.vega = vega; window.vegaEmbed = vegaEmbed;")
    # Its own names stay its own.
    return f"(() => {{{bundle}\n}})();"


def packed(script: str) -> str:
    """A script as the page holds it: deflated, in base64. Vega takes 0.4 MB so, and 0.9 MB as it is."""
    return base64.b64encode(zlib.compress(script.encode(), 9)).decode()

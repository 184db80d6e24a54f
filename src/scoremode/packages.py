"""The packages that scoremode is installed with, and what is said where one is not there.

`pip install --no-deps`, which vLLM's releases may ask for, leaves that to the user.
"""

from importlib.util import find_spec

from scoremode.errors import EngineError

__all__ = ["check_packages", "missing"]

_NEEDED = (
    "huggingface_hub", "numpy", "pyarrow", "regex", "safetensors", "tokenizers", "torch", "tqdm",
    "transformers",
)  # fmt: skip


def check_packages() -> None:
    """Raises EngineError where a package is missing that a measurement needs, sooner or later."""
    for name in _NEEDED:
        if find_spec(name) is None:
            raise EngineError(missing(name) or name)


def missing(module: str | None) -> str | None:
    """What is said of a module that can't be found; None if it is of no package that is needed."""
    name = (module or "").partition(".")[0]
    if name not in _NEEDED or find_spec(name) is not None:
        return None
    return f"the package {name} is not installed: pip install {name}"

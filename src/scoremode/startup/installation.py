"""Checks, before anything is loaded, what a measurement needs of its installation and its machine.

`pip install --no-deps`, which vLLM's releases may ask for, leaves the packages to the user. A limit on
the address space that the libraries alone don't fit into ends in their C code, anywhere and anyhow: a
crash, an import that fails halfway, a thread that waits for one that never started.
"""

import resource
from collections.abc import Iterator
from importlib.util import find_spec

from scoremode.errors import EngineError

__all__ = ["check_installation", "missing", "untested"]

_NEEDED = (
    "huggingface_hub", "numpy", "pyarrow", "regex", "safetensors", "tokenizers", "torch",
    "transformers", "yaml",
)  # fmt: skip
# Packages that are called otherwise than what is imported of them.
_CALLED = {"yaml": "pyyaml"}
# torch, transformers and Arrow on a CPU take 2.4 GB where nothing keeps them from it (2026-11), and
# with less than 1.4 GB they hang or crash.
_LEAST_ADDRESSES = 2 << 30


def check_installation() -> None:
    """Raises EngineError where a package is missing, or the address space too small for all."""
    for name in _NEEDED:
        if find_spec(name) is None:
            raise EngineError(missing(name) or name)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_ADDRESSES:
        raise EngineError(
            f"ulimit -v {limit >> 10}: the libraries alone take {_LEAST_ADDRESSES >> 30} GiB of "
            "address space, and a model's files as much as they are long"
        )


def missing(module: str | None) -> str | None:
    """The message for a module that can't be found; None if it is of no package that is needed."""
    name = (module or "").partition(".")[0]
    if name not in _NEEDED or find_spec(name) is not None:
        return None
    package = _CALLED.get(name, name)
    return f"the package {package} is not installed: pip install {package}"


def untested() -> Iterator[str]:
    """A line for each installed package that is newer, or older, than scoremode's metadata allows: what
    another package wants, and `--no-deps`, may install it all the same."""
    from importlib import metadata

    from packaging.requirements import Requirement

    try:
        lines = metadata.requires("scoremode") or ()
    except metadata.PackageNotFoundError:
        # Run from its source, which promises nothing.
        return
    for wanted in map(Requirement, lines):
        if wanted.marker is not None:
            continue
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            continue
        if not wanted.specifier.contains(version, prereleases=True):
            tested = ",".join(sorted(str(wanted.specifier).split(","), reverse=True))
            yield f"{wanted.name} {version}: scoremode was tested with {tested}"

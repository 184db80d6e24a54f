"""Sections of a record that other rooms than `results` make of its Scores.

The same make them when a run is finished and whenever it is read, so that a record's are compared with
those of its Scores.
"""

from scoremode.llama_cpp.block import block_section
from scoremode.results.record.sections import Further

__all__ = ["FURTHER"]

FURTHER: tuple[Further, ...] = (block_section,)

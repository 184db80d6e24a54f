"""Lists of modules that stay as they are, as transformers matches names with them.

Source: transformers 5.23, `should_convert_module`; 4.46, `_replace_with_bnb_linear`.
"""

from dataclasses import dataclass
from functools import cached_property

from scoremode.schemes.fields import Fields
from scoremode.schemes.patterns import Patterns, plain

__all__ = ["NotConverted"]

# What a regular expression has beside letters and the dots of names.
_SPECIAL = frozenset("\\*+?[](){}|^$")
_BOUNDARY = r"(?:(?<=\.)|(?=\.|$))"


@dataclass(frozen=True)
class NotConverted:
    """The names of a config's `modules_to_not_convert`; `where`: the field's own name."""

    names: tuple[str, ...] = ()
    where: str = "modules_to_not_convert"

    @classmethod
    def of(cls, fields: Fields, *fields_names: str) -> "NotConverted":
        """The list in the first of these fields that is there. Raises CheckpointError for one that
        can't be understood, patterns that don't compile included."""
        said = (name for name in fields_names if fields.any(name) is not None)
        where = next(said, fields_names[0])
        result = cls(fields.names(where), where)
        assert result._patterns is not None
        return result

    def name(self, module: str) -> bool:
        """Tells whether the list names the module: by its own name or that of one around it, by the
        end of its name, or as a regular expression."""
        parts = module.split(".")
        around = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
        return (
            not self._whole.isdisjoint(around)
            or module.endswith(self.names)
            or self._patterns.matches(module)
        )

    def spares(self, module: str) -> bool:
        """Tells whether the list may have left the module dense: as it `name`s it, by older releases'
        rule (a run of whole parts of its name, up to a part's end), or under another beginning."""
        return self.name(module) or any(f"{plain(name)}." in f"{module}." for name in self.names)

    @cached_property
    def _whole(self) -> frozenset[str]:
        return frozenset(self.names)

    @cached_property
    def _patterns(self) -> Patterns:
        # A dot at the end may stand for any character: of layer 11, too, after `layers.1`.
        special = [n for n in self.names if n.endswith(".") or not _SPECIAL.isdisjoint(n)]
        return Patterns((f"re:(?:{name}){_BOUNDARY}" for name in special), self.where)

"""Gates on the command line: their flags, and how a missed one ends a command."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scoremode.errors import GateNotMet

if TYPE_CHECKING:
    from scoremode.results.gates import Gate, Gates

__all__ = ["add_gates", "exit_code_of", "gates_of"]

_GATES = ("max_kld", "max_kld_p99", "max_ppl_ratio", "min_top1")
# A limit, and how the user wrote it.
_Typed = tuple[float, str]


def add_gates(parser: argparse.ArgumentParser) -> None:
    gates = parser.add_argument_group(
        f"gates (exit code {GateNotMet.exit_code} where one is not met)"
    )
    gates.add_argument(
        "--max-kld", type=_nats, metavar="NATS", help="most that the mean KLD may be"
    )
    gates.add_argument(
        "--max-kld-p99",
        type=_nats,
        metavar="NATS",
        help="most that the KLD's 99th percentile may be",
    )
    gates.add_argument(
        "--max-ppl-ratio", type=_ratio, metavar="R", help="most that PPL / base PPL may be"
    )
    gates.add_argument(
        "--min-top1",
        type=_share,
        metavar="SHARE",
        help="least share of targets with the same top-1, such as 0.9 or 90%%",
    )
    gates.add_argument(
        "--gate-on",
        choices=("value", "upper"),
        default="value",
        help="what gates judge: the number itself (default), or the upper bound of its 95 %% interval "
        "(for --min-top1 the lower one), so that luck with the text meets no gate",
    )


def gates_of(args: argparse.Namespace) -> "Gates":
    """The gates that the flags set. Raises UsageError."""
    from scoremode.results.gates import Gates

    given: dict[str, _Typed] = {n: v for n in _GATES if (v := getattr(args, n)) is not None}
    limits = {name: value for name, (value, _) in given.items()}
    typed = {name: text for name, (_, text) in given.items()}
    return Gates(**limits, on=args.gate_on, typed=typed)


def exit_code_of(judged: "Sequence[Gate]") -> int:
    """Says on stderr which gates are not met, and with which code the command ends."""
    failed = [gate for gate in judged if not gate.met]
    for gate in failed:
        print(f"scoremode: {gate}", file=sys.stderr)
    return GateNotMet.exit_code if failed else 0


def _nats(text: str) -> _Typed:
    return _number(text, "a number of nats such as 0.05", "a KLD is in nats, and has no percent")


def _ratio(text: str) -> _Typed:
    not_percent = "a ratio is a number such as 1.02, not a percentage"
    return _number(text, "a ratio such as 1.02", not_percent)


def _share(text: str) -> _Typed:
    """`0.9` or `90%`."""
    number, percent, rest = text.strip().partition("%")
    if rest:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share such as 0.9 or 90%")
    value, _ = _number(number, "a share such as 0.9 or 90%")
    # Rounded to the decimal that is meant, since 0.999 of all meets 99.9%.
    return float(f"{value / 100:.15g}") if percent else value, text.strip()


def _number(text: str, wanted: str, not_percent: str = "") -> _Typed:
    if text.rstrip().endswith("%"):
        raise argparse.ArgumentTypeError(f"{text}: {not_percent}")
    try:
        return float(text), text.strip()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None

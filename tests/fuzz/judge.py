"""One mutated folder: refused in one clear line, or read right."""

import json
import math
from pathlib import Path

import torch
from fuzz import gguf_judge
from fuzz.oracle import Disputed, Oracle, is_one_line

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.cli.inspect import inspect
from scoremode.errors import ScoremodeError
from scoremode.report.inspection import inspect_document
from scoremode.report.terminal import document_text
from scoremode.schemes.base import FactoredScheme, Scratch
from scoremode.schemes.fused_experts import Stacked, input_tensors
from scoremode.schemes.resolve import Schemes, resolve
from scoremode.schemes.summary import stored_summary, summarize


class Wrong(Exception):
    """A verdict against scoremode."""


def judge(folder: Path) -> str:
    """`refused`, `right`, or `disputed: why` where nothing can tell. Raises Wrong, or whatever
    scoremode raised that it should not have."""
    refusals: dict[str, ScoremodeError] = {}
    try:
        checkpoint = open_checkpoint(str(folder))
        refused = _summaries(checkpoint)
        _check_inspection(folder)
        schemes = resolve(checkpoint, refusals)
    except ScoremodeError as error:
        _check_message(str(error))
        return f"refused: {error}"
    for error in (*refusals.values(), *refused):
        _check_message(str(error))
    if not checkpoint.is_folder:
        if found := gguf_judge.differences(checkpoint, schemes):
            raise Wrong("; ".join(found[:3]))
        return "refused: in part" if refusals else "right"
    oracle = Oracle(folder, list(checkpoint.weight_files))
    _check_dense(checkpoint, oracle)
    disputed = ""
    for module in schemes.quantized:
        try:
            _check_module(checkpoint, schemes, module, oracle)
        except Disputed as error:
            disputed = f"disputed: {module}: {error}"
    if disputed:
        return disputed
    return "refused: in part" if refusals else "right"


def _summaries(checkpoint: Checkpoint) -> list[str]:
    assert isinstance(checkpoint.fingerprint, str)
    stored_summary(checkpoint)
    summary = summarize(checkpoint)
    value = summary.to_json()
    bits = [b for b in value["bits_per_weight"].values() if b is not None]
    counted = sum(f.parameters for f in summary.formats.values())
    if not all(math.isfinite(b) and b >= 0 for b in bits) or counted > summary.parameters:
        raise Wrong(f"summary {value}")
    return list(summary.refusals.values())


def _check_inspection(folder: Path) -> None:
    """It can be printed, whatever the folder holds."""
    value = inspect(str(folder))
    text = document_text(inspect_document(value))
    json.dumps(value, ensure_ascii=False).encode()
    if not all(line.isprintable() and len(line) < 5000 for line in text.split("\n")):
        raise Wrong(f"inspection {text[:3000]!r}")


def _check_message(message: str) -> None:
    if not is_one_line(message):
        raise Wrong(f"message {message[:3000]!r}")


def _check_dense(checkpoint: Checkpoint, oracle: Oracle) -> None:
    if set(checkpoint.tensors) != set(oracle.raw):
        raise Wrong(f"tensors {sorted(set(checkpoint.tensors) ^ set(oracle.raw))}")
    for name, content in oracle.raw.items():
        tensor = checkpoint.read(name)
        if tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() != content:
            raise Wrong(f"tensor {name} has other bytes")


def _check_module(checkpoint: Checkpoint, schemes: Schemes, module: str, oracle: Oracle) -> None:
    scheme, home = schemes.quantized[module], schemes.home_of(module)
    own = {s: checkpoint.read(f"{home}.{s}") for s in scheme.tensors}
    names = {s: f"{home}.{n}" for s, n in input_tensors(scheme).items()}
    # Weights alone don't need them.
    static = {s: checkpoint.read(n) for s, n in names.items() if n in checkpoint.tensors}
    # NaN wherever nothing is written.
    dense = torch.full(scheme.shape, math.nan)
    scheme.decode(own, dense, Scratch())
    expected = oracle.weight(module)
    _check_same(dense, expected, f"{module} ({scheme.label}) decodes to another weight")
    if oracle.other:
        _check_other_inputs(schemes, module, oracle)
    else:
        library = oracle.library_weight(module)
        if library is not None and library.shape == expected.shape:
            _check_same(library, expected, f"{module} ({scheme.label}): the oracles differ")
        _check_inputs(schemes, module, oracle)
    one = scheme
    if isinstance(scheme, Stacked):
        last = scheme.count - 1
        one, dense = scheme.one, dense[last]
        own, static = ({s: t[last] for s, t in tensors.items()} for tensors in (own, static))
    if isinstance(one, FactoredScheme) and not {"weight_g_idx", "g_idx"} & set(scheme.tensors):
        _check_factors(one, own, dense)
    if one.inputs is not None and static.keys() == names.keys():
        x = torch.randn(3, one.shape[1])
        quantized = one.inputs.quantize(x, static)
        if quantized.codes.shape != x.shape:
            raise Wrong(f"{module}: quantized inputs {list(quantized.codes.shape)}")


def _check_factors(
    scheme: FactoredScheme, tensors: dict[str, torch.Tensor], dense: torch.Tensor
) -> None:
    """Codes times scales are the effective weight, but for its rounding."""
    codes = torch.full(scheme.shape, math.nan)
    scales = scheme.factor(tensors, codes, Scratch())
    group = scheme.codes.group
    spread = scales.repeat_interleave(group, 1)[:, : codes.shape[1]] if group else scales
    # A product of codes and scales rounds once less than the effective weight does.
    product = codes * spread
    finite = dense.isfinite() & product.isfinite() & (dense.abs() > 1e-30)
    torch.testing.assert_close(product[finite], dense[finite], rtol=2**-6, atol=1e-6)


def _check_inputs(schemes: Schemes, module: str, oracle: Oracle) -> None:
    """The formats are those the library reads."""
    scheme, _, _ = oracle.scheme(module)
    ours = schemes.quantized[module].inputs
    # gpt-oss' may be quantized, and nothing says so.
    ours = ours if ours and ours.declared else None
    theirs = scheme.input_activations
    if (ours is None) != (theirs is None):
        raise Wrong(f"{module}: inputs {ours}, the library's {theirs}")
    if ours is None or theirs is None:
        return
    f = ours.format
    mine = f.bits, f.type, f.strategy, f.symmetric, f.dynamic
    other = theirs.num_bits, theirs.type, theirs.strategy, theirs.symmetric, theirs.dynamic
    if mine != other or (f.group_size or None) != (max(theirs.group_size or 0, 0) or None):
        raise Wrong(f"{module}: inputs {f}, the library's {theirs}")


def _check_other_inputs(schemes: Schemes, module: str, oracle: Oracle) -> None:
    ours, theirs = schemes.quantized[module].inputs, oracle.input(module)
    f = ours.format if ours else None
    mine = f and (f.bits, f.type, f.strategy, f.symmetric, bool(f.dynamic), f.group_size)
    if mine != theirs:
        raise Wrong(f"{module}: inputs {mine}, the library's {theirs}")


def _check_same(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    if actual.shape != expected.shape or not torch.equal(
        actual.nan_to_num(1234.5, 1e38, -1e38), expected.nan_to_num(1234.5, 1e38, -1e38)
    ):
        raise Wrong(f"{what}, {list(actual.shape)} against {list(expected.shape)}")

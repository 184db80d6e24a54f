"""What a module of AWQ, GPTQ or AutoRound is, without scoremode: each value out of one long number."""

import re
from dataclasses import dataclass
from typing import Any

import regex
import torch

Tensors = dict[str, torch.Tensor]
# The outputs of a word of AWQ's, from its lowest bits on.
_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Said:
    """What a config says of a module, as readers of the format take it."""

    bits: int
    size: int
    symmetric: bool


def weight(method: str, stored: Tensors, module: str, config: dict[str, Any]) -> torch.Tensor:
    """float32 [O, I]. Raises AssertionError for what nothing in the config says."""
    words, zeros, scale = stored["qweight"], stored["qzeros"], stored["scales"]
    groups, rows = scale.shape
    bits = 32 * zeros.shape[1] // rows
    of_outputs = words.shape[1] != rows
    assert of_outputs == _is_of_outputs(method, config, of_outputs)
    q = _across(words) if of_outputs else _codes(words.T, bits)
    zero = (_across(zeros) if of_outputs else _codes(zeros, bits).T).T
    # [O, I] and [groups, O].
    columns = q.shape[1]
    said = _said_of(method, module, config)
    fits = [s for s in said if s.bits == bits and _groups(columns, s.size) == groups]
    assert fits, f"{bits} bits in {groups} groups, and the config says {said}"
    if fits[0].symmetric:
        assert len(zero.unique()) == 1
        zero = torch.full_like(zero, 1 << (bits - 1))
    elif not of_outputs and _is_less_one(method, config):
        zero = zero + 1
    where = torch.arange(columns) // (fits[0].size if fits[0].size > 0 else columns)
    if "g_idx" in stored and not of_outputs:
        where = stored["g_idx"].long()
        assert int(where.min()) >= 0 and int(where.max()) < groups
    less = (q - zero[where].T).to(scale.dtype)
    return (less * scale[where].T).float()


def _codes(words: torch.Tensor, bits: int) -> torch.Tensor:
    """[n, values] of int32 words [n, words], each value a run of bits, lowest first."""
    rows = []
    for row in words.tolist():
        number = sum((word & 0xFFFFFFFF) << (32 * i) for i, word in enumerate(row))
        count = 32 * len(row) // bits
        rows.append([number >> (i * bits) & ((1 << bits) - 1) for i in range(count)])
    return torch.tensor(rows)


def _across(words: torch.Tensor) -> torch.Tensor:
    """[outputs, n] of words [n, words], each of eight outputs."""
    result = torch.empty(8 * words.shape[1], len(words), dtype=torch.int64)
    for i, row in enumerate(words.tolist()):
        for j, word in enumerate(row):
            for k, output in enumerate(_OUTPUTS):
                result[8 * j + output, i] = (word & 0xFFFFFFFF) >> (4 * k) & 15
    return result


def _groups(columns: int, size: int) -> int:
    return 1 if size == -1 else -(-columns // size)


def _is_of_outputs(method: str, config: dict[str, Any], found: bool) -> bool:
    if method != "auto-round":
        return method == "awq"
    packing = _packing(config)
    return "awq" in packing if packing else found


def _is_less_one(method: str, config: dict[str, Any]) -> bool:
    if method == "auto-round":
        packing = _packing(config)
        assert packing, "nothing says how zero points are stored"
        return "gptq" in packing and "gptqmodel" not in packing
    return (config.get("checkpoint_format") or config.get("format") or "gptq") == "gptq"


def _packing(config: dict[str, Any]) -> str:
    packing = config.get("packing_format")
    packing = config.get("backend") if packing is None else packing
    return "" if packing in (None, "auto") else str(packing).lower()


def _said_of(method: str, module: str, config: dict[str, Any]) -> list[Said]:
    """What the config says of the module, then all that it says of any."""
    if method == "awq":
        bits = config.get("bits", config.get("w_bit"))
        size = config.get("group_size")
        size = config.get("q_group_size") if size is None else size
        return [Said(bits or 4, size or 128, not config.get("zero_point", True))]
    base = Said(config["bits"], config.get("group_size", 128), bool(config.get("sym", True)))
    found, every = None, [base]
    others = config.get("dynamic" if method == "gptq" else "extra_config") or {}
    for pattern, what in others.items():
        if pattern.startswith("-:") and method == "gptq":
            assert not _matches(pattern[2:], module, whole=False), "not to be quantized"
            continue
        if what and what.get("bits") is not None and what["bits"] >= 16:
            continue
        fields = what or {}
        own = Said(
            fields.get("bits", base.bits),
            fields.get("group_size", base.size),
            bool(fields.get("sym", base.symmetric)),
        )
        every.append(own)
        if pattern == module and method != "gptq":
            found = own
        elif found is None and _is_pattern(method, pattern):
            expression = re.sub(r"^[+-]:", "", pattern) if method == "gptq" else pattern
            if _matches(expression, module, whole=method != "gptq"):
                found = own
    return [found or base, *every]


def _is_pattern(method: str, text: str) -> bool:
    return method == "gptq" or re.fullmatch(r"[\w.-]+", text) is None


def _matches(expression: str, module: str, *, whole: bool) -> bool:
    match = regex.fullmatch if whole else regex.match
    return match(expression, module, timeout=2) is not None

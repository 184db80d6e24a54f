"""Decoding one weight of every format, beside a plain copy of the decoded bytes.

Random codes in a 4096 × 4096 weight (14336 × 4096 on a GPU, more than its cache), decoded to bfloat16
(AWQ and GPTQ to float16, in which they are published) into a buffer that is reused, the best of several
rounds. `ns/weight` is the time of all threads
together; GB/s counts what is read and written, and `of a copy` is its share of a copy's GB/s.
`allocated` is what torch allocated in a decode after the first, in bytes a weight: small scales, no
scratch.

    python benchmarks/decode.py [--device cuda] [--threads 2] [--shape 4096 4096] [--rounds 7]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scoremode.checkpoint.gguf.table import Layout
from scoremode.schemes.base import FactoredScheme, Scratch
from scoremode.schemes.compressed_tensors_weights import (
    float_quantized,
    int_quantized,
    mx,
    nvfp4,
    pack_quantized,
)
from scoremode.schemes.decoding.codes import Scaling
from scoremode.schemes.fp8 import block_float8
from scoremode.schemes.gguf import BLOCK_TYPES, Blocks, Permuted
from scoremode.schemes.qweight import Qweight

Tensors = dict[str, torch.Tensor]
# Of GPTQ's formats.
BITS = (2, 3, 4, 8)
# Runs that are timed together: a GPU's launches are not waited for.
TOGETHER = {"cpu": 1, "cuda": 20}


def cases(rows: int, columns: int) -> list[tuple[FactoredScheme, Tensors]]:
    """A scheme and random tensors for it, of every format."""
    shape = rows, columns
    generator = torch.Generator().manual_seed(0)

    def integers(
        *size: int, low: int = 0, high: int = 256, dtype: torch.dtype = torch.uint8
    ) -> Any:
        return torch.randint(low, high, size, generator=generator).to(dtype)

    def words(n: int, bits: int, dense: bool = True) -> torch.Tensor:
        width = -(-n * bits // 32) if dense else -(-n // (32 // bits))
        return integers(rows, width, low=-(2**31), high=2**31, dtype=torch.int32)

    def scale(groups: int) -> torch.Tensor:
        return torch.rand(rows, groups, generator=generator).bfloat16()

    def float8(*size: int) -> torch.Tensor:
        # Without the two codes of NaN.
        return integers(*size, high=127).view(torch.float8_e4m3fn)

    result: list[tuple[FactoredScheme, Tensors]] = []
    by_128, channel = Scaling(shape, "group", 128), Scaling(shape, "channel")
    for bits in range(2, 9):
        tensors = {"weight_packed": words(columns, bits), "weight_scale": scale(columns // 128)}
        result.append((pack_quantized(by_128, bits), tensors))
    padded = {"weight_packed": words(columns, 3, False), "weight_scale": scale(columns // 128)}
    result.append((pack_quantized(by_128, 3, dense=False), padded))
    by_32 = Scaling(shape, "group", 32)
    packed = words(columns, 4)
    small = {"weight_packed": packed, "weight_scale": scale(columns // 32)}
    result.append((pack_quantized(by_32, 4), small))
    zeros = integers(rows // 8, columns // 128, low=-(2**31), high=2**31, dtype=torch.int32)
    asymmetric = {
        "weight_packed": packed,
        "weight_scale": scale(columns // 128),
        "weight_zero_point": zeros,
    }
    result.append((pack_quantized(by_128, 4, has_zero_point=True), asymmetric))
    int8 = integers(*shape, low=-128, high=128, dtype=torch.int8)
    result.append((int_quantized(channel, 8), {"weight": int8, "weight_scale": scale(1)}))
    fp8 = {"weight": float8(*shape)}
    result.append((float_quantized(channel), fp8 | {"weight_scale": scale(1)}))
    block = Scaling(shape, "block", block=(128, 128))
    blocks = torch.rand(block.stored_shape, generator=generator).bfloat16()
    result.append((float_quantized(block), fp8 | {"weight_scale": blocks}))
    result.append((block_float8(block), fp8 | {"weight_scale_inv": blocks.float()}))
    groups = columns // 128
    order = (torch.randperm(columns, generator=generator) // 128).int()
    for library, bits, words_of in (("AWQ", 4, "outputs"), *(("GPTQ", b, "columns") for b in BITS)):
        inner = columns if library == "AWQ" else columns * bits // 32
        lines = (inner, rows // 8) if library == "AWQ" else (inner, rows)
        stored = {
            "qweight": integers(*lines, low=-(2**31), high=2**31, dtype=torch.int32),
            "qzeros": integers(
                groups, rows * bits // 32, low=-(2**31), high=2**31, dtype=torch.int32
            ),
            "scales": scale(groups).T.contiguous().half(),
        }
        less_one = library == "GPTQ"
        plain = Qweight.of(by_128, bits, library, words_of, True, less_one=less_one)
        result.append((plain, stored))
        if library == "GPTQ":
            ordered = Qweight.of(by_128, bits, library, words_of, True, True, less_one)
            result.append((ordered, stored | {"g_idx": order}))
    stored = {
        "weight_packed": integers(rows, columns // 2),
        "weight_scale": float8(rows, columns // 16),
        "weight_global_scale": torch.tensor([100.0]),
    }
    result.append((nvfp4(Scaling(shape, "group", 16)), stored))
    exponents = integers(rows, columns // 32, low=110, high=130)
    for bits in (4, 6, 8):
        name = "weight" if bits == 8 else "weight_packed"
        elements = float8(*shape) if bits == 8 else integers(rows, columns * bits // 8)
        result.append((mx(by_32, bits), {name: elements, "weight_scale": exponents}))
    for of in BLOCK_TYPES.values():
        width = columns // of.values * of.bytes
        # No half, and no power of two, is past what bfloat16 holds where all bytes are below 64.
        result.append((Blocks(of.name, shape), {of.name: integers(rows, width, high=64)}))
    # As a llama's queries lie in a file, with heads of 128.
    stored = {"Q4_K": integers(rows, columns // 256 * 144, high=64)}
    result.append((Permuted(Blocks("Q4_K", shape), Layout(turns=rows // 128)), stored))
    return result


def best(run: Callable[[], Any], rounds: int, device: str) -> float:
    run()
    times = []
    for _ in range(rounds):
        wait(device)
        begin = time.perf_counter()
        for _ in range(TOGETHER[device]):
            run()
        wait(device)
        times.append((time.perf_counter() - begin) / TOGETHER[device])
    return min(times)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


class Allocated(TorchDispatchMode):
    """Counts the bytes of results that are no part of an operation's inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if _is(t)}
        result = func(*args, **(kwargs or {}))
        for t in filter(_is, tree_leaves(result)):
            if t.untyped_storage().data_ptr() not in given:
                self.bytes += t.untyped_storage().nbytes()
        return result


def _is(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def allocated(run: Callable[[], Any]) -> int:
    with Allocated() as counted:
        run()
    return counted.bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=sorted(TOGETHER), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", type=int, nargs=2)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows, columns = args.shape or ((4096, 4096) if args.device == "cpu" else (14336, 4096))
    weights = rows * columns
    out = torch.empty(rows, columns, dtype=torch.bfloat16, device=args.device)
    half = out.view(torch.float16)
    other = torch.rand(rows, columns).bfloat16().to(args.device)
    scratch = Scratch()
    print(f"{'format':28} {'ns/weight':>9} {'GB/s':>7} {'of a copy':>9} {'allocated':>9}")
    copy = best(lambda: out.copy_(other), args.rounds, args.device)
    ceiling = 2 * out.nbytes / copy / 1e9
    print(f"{'copy of bfloat16':28} {copy / weights * 1e9:9.4f} {ceiling:7.1f} {1:9.2f}")
    for scheme, stored in cases(rows, columns):
        tensors = {name: tensor.to(args.device) for name, tensor in stored.items()}

        target = half if isinstance(scheme, Qweight) else out

        def run(
            scheme: FactoredScheme = scheme, tensors: Tensors = tensors, into: torch.Tensor = target
        ) -> None:
            scheme.decode(tensors, into, scratch)

        seconds = best(run, args.rounds, args.device)
        assert torch.isfinite(target).all(), scheme.label
        moved = (sum(t.nbytes for t in tensors.values()) + out.nbytes) / seconds / 1e9
        layout = (
            " padded"
            if getattr(scheme, "elements", None) and scheme.elements.layout == "padded"
            else ""
        )
        layout = " in another order" if isinstance(scheme, Permuted) else layout
        print(
            f"{scheme.label + layout:28} {seconds / weights * 1e9:9.4f} {moved:7.1f} "
            f"{moved / ceiling:9.2f} {allocated(run) / weights:9.3f}"
        )


if __name__ == "__main__":
    main()

"""A request's model: a checkpoint, a mixture with modules of others, a module in memory, or kept
predictions."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.checkpoint.gguf.names import is_gguf
from scoremode.checkpoint.model_files import ModelFiles, resolve_model, resolve_tokenizer
from scoremode.checkpoint.virtual import Mixture, ModuleInMemory
from scoremode.engines.base import Options
from scoremode.engines.http.options import HttpOptions
from scoremode.engines.replay.options import Predictions, ReplayOptions
from scoremode.engines.torch.options import InMemoryOptions, TorchOptions
from scoremode.errors import CheckpointError, EngineError, TokenizerError, UsageError
from scoremode.lib.hub import on_hub
from scoremode.llama_cpp.file import holds_logits
from scoremode.results.folders.store import RECORD
from scoremode.results.record.checks import checked_record
from scoremode.runs.request import Request, Swap

if TYPE_CHECKING:
    from msgspec import UnsetType
    from torch import nn

    from scoremode.results.record.model import Mixture as Mixed
    from scoremode.results.record.model import TakenModules


def swaps_of(
    keep_dense: Sequence[str], swap: Sequence[str], reference: str | None, revision: str | None
) -> tuple[Swap, ...]:
    """The swaps of a command line: patterns whose modules stay as the base `reference` has them, and
    `PATTERN=OTHER`. Raises UsageError."""
    found = []
    for words in swap:
        found.append(_swap(words))
    if keep_dense:
        assert reference is not None
        source, of, fingerprint = _base_of(reference, revision, keep_dense[0])
        found += [Swap(p, source, of, True, fingerprint) for p in keep_dense]
    return tuple(found)


def _swap(words: str) -> Swap:
    """`PATTERN=OTHER`. Both may hold an equals sign, a regular expression as well as a path: what is
    behind one of them must be there, and else the last one separates."""
    places = [i for i, c in enumerate(words) if c == "=" and 0 < i < len(words) - 1]
    if not places:
        raise UsageError(f"--swap {words}: give PATTERN=OTHER, such as layers.0=path/to/other")
    here = [i for i in places if os.path.exists(words[i + 1 :])]  # noqa: PTH110  a name too long
    if len(here) > 1:
        raise UsageError(
            f"--swap {words}: OTHER may be {words[here[0] + 1 :]} or {words[here[1] + 1 :]}, and both "
            "are there: rename one, or give a link to it"
        )
    at = here[0] if here else places[-1]
    return Swap(words[:at], words[at + 1 :])


def opened_model(request: Request, notify: Callable[[str], None] = lambda _: None) -> Checkpoint:
    """The checkpoint, or mixture, of a request whose names are resolved. Raises ScoremodeError, also
    where its engine doesn't read such files."""
    if isinstance(request.options, InMemoryOptions):
        return request.options.checkpoint
    if isinstance(request.options, ReplayOptions):
        return request.options.predictions.checkpoint
    if isinstance(request.options, HttpOptions):
        assert isinstance(request.model, ModelFiles)
        assert not isinstance(request.tokenizer, str)
        return request.options.opened(request.model, request.tokenizer)
    code = request.options.trust_remote_code
    checkpoint = opened(request.model, request.swaps, code=code, notify=notify)
    check_engine(request.options, checkpoint)
    check_quantization(request.quantization, checkpoint)
    return checkpoint


def opened(
    model: str | ModelFiles,
    swaps: Sequence[Swap],
    *,
    code: bool,
    notify: Callable[[str], None] = lambda _: None,
) -> Checkpoint:
    """The checkpoint of `model`, or the mixture that the swaps make of it; `notify` is told where what
    is taken may not fit the rest. Raises UsageError, CheckpointError, UnsupportedModel."""
    own = open_checkpoint(model, code=code)
    if not swaps:
        return own
    from scoremode.schemes.mixing import Take, mixed

    others: dict[str | ModelFiles, Checkpoint] = {}
    takes = []
    for swap in swaps:
        if swap.source not in others:
            others[swap.source] = open_checkpoint(swap.source)
        other = others[swap.source]
        if swap.fingerprint not in (None, other.fingerprint):
            raise CheckpointError(
                f"{swap.flag} {swap.pattern}: {other.source} is not the base any more: its fingerprint "
                f"is {other.fingerprint[:12]}…, and was {str(swap.fingerprint)[:12]}…"
            )
        takes.append(Take(swap.pattern, other, swap.flag, swap.is_base))
    mixture = mixed(own, takes)
    for take in mixture.taken:
        if take.differing:
            first, *more = take.differing
            are = f", nor are {len(more)} more" if more else ""
            notify(
                f"{take.pattern} of {take.other.source}: beside it {first} is not the same in both"
                f"{are}: scales or rotations were moved into other modules, so those taken do not fit "
                "the rest"
            )
    return mixture


def predictions_in(model: str) -> Predictions | None:
    """The kept predictions that a model's name stands for: a reference's folder, or llama.cpp's file;
    None where it names a model. Raises ReferenceUnusable, RunFolderError."""
    path = Path(model)
    if os.path.isfile(path / RECORD):  # noqa: PTH113  Path.is_file raises for a name too long
        from scoremode.engines.replay.engine import KeptRun

        return KeptRun(path)
    if os.path.isfile(path) and holds_logits(path):  # noqa: PTH113
        from scoremode.llama_cpp.reference import KeptLogits

        return KeptLogits(path)
    return None


def replayed(request: Request, predictions: Predictions) -> Request:
    """A request of the torch engine with `predictions` as its model, under `request.model`, and the
    tokenizer that made their text unless it names one. Raises UsageError where nothing tells which that
    was, TokenizerError where it is gone."""
    assert isinstance(request.options, TorchOptions)
    name = str(request.model)
    tokenizer = request.tokenizer or _tokenizer_of(predictions, request.reference)
    if tokenizer is None:
        raise UsageError(
            f"{name}: doesn't say which tokenizer made its tokens: give --tokenizer PATH"
        )
    return replace(
        request,
        model=ModelFiles(name, Path(name), name),
        tokenizer=tokenizer,
        options=ReplayOptions(predictions, request.options),
    )


def _tokenizer_of(predictions: Predictions, base: str | ModelFiles | None) -> ModelFiles | None:
    """The tokenizer in the record of what was kept, else that of a base, kept or not."""
    source = predictions.tokenizer
    if source is None and isinstance(base, str) and os.path.isfile(Path(base) / RECORD):  # noqa: PTH113
        source = checked_record(Path(base)).tokenizer.source
    if source is not None:
        if found := on_hub(source):
            return resolve_model(found[0], found[1] or None)
        if not os.path.exists(source):  # noqa: PTH110
            raise TokenizerError(
                f"the tokenizer of this text is not in {source} any more: give --tokenizer"
            )
        return resolve_tokenizer(source)
    is_file = isinstance(base, str) and os.path.isfile(base) and not is_gguf(Path(base))  # noqa: PTH113
    return None if base is None or is_file else resolve_model(base)


def check_engine(options: Options, checkpoint: Checkpoint) -> None:
    """Raises EngineError where the engine of `options` reads no file such as the checkpoint's."""
    if isinstance(checkpoint, Mixture) and not options.mixes:
        take = checkpoint.taken[0]
        flag = "--keep-dense" if take.is_base else "--swap"
        raise EngineError(
            f"{flag} {take.pattern}: vLLM loads a checkpoint as it was written: use --engine torch"
        )
    if not (checkpoint.is_folder or options.reads_gguf):
        raise EngineError(
            f"{checkpoint.source}: is a GGUF file, which vLLM is not given here: use --engine torch"
        )


def check_quantization(stated: str | None, checkpoint: Checkpoint) -> None:
    """Raises UsageError where the user states another quantization method than the config does."""
    config = checkpoint.quantization
    method = config.get("quant_method", "compressed-tensors") if config else None
    if stated is not None and stated != method:
        raise UsageError(
            f"--quantization {stated}: {checkpoint.source} is {method or 'not quantized'}"
        )


def reopened(
    mixture: "Mixed | UnsetType",
    model: ModelFiles,
    places: Callable[["TakenModules"], ModelFiles],
    *,
    code: bool,
) -> Checkpoint:
    """The checkpoint in `model`, with what a record's `mixture` takes from others.

    `places`: where each of the others lies, given what the record says of it.
    """
    if not mixture:
        return open_checkpoint(model, code=code)
    swaps = [Swap(take.pattern, places(take), None, take.is_base) for take in mixture.taken]
    return opened(model, swaps, code=code)


def mixture_section(checkpoint: Checkpoint) -> dict[str, Any]:
    """The part of a record's section `checkpoint` that only mixtures have."""
    return {"mixture": checkpoint.mixture_json()} if isinstance(checkpoint, Mixture) else {}


def _base_of(
    reference: str, revision: str | None, pattern: str
) -> tuple[str, str | None, str | None]:
    """The base's checkpoint, its revision and the fingerprint that it must have."""
    from scoremode.reference.stored import StoredReference, is_run
    from scoremode.runs.baselines import is_logits_file

    path = Path(reference)
    if is_run(path):
        kept = StoredReference(path)
        stored = kept.record.checkpoint
        if kept.address is None:
            return stored.path or stored.source, None, stored.fingerprint
        # Not a path of another machine, which may be anything here.
        if (found := on_hub(stored.source)) is None:
            raise UsageError(
                f"--keep-dense {pattern}: {kept.address} is of {stored.source}, which the hub does "
                f"not have: --swap {pattern}=BASE names the base's checkpoint"
            )
        return found[0], found[1] or None, stored.fingerprint
    if is_logits_file(path):
        raise UsageError(
            f"--keep-dense {pattern}: {reference} holds log-probabilities and no weights: --swap "
            f"{pattern}=BASE names the base's checkpoint"
        )
    return reference, revision, None


class InMemory:
    """A module in memory with places for what a request names by a path: `model`, a folder with its
    config, and `tokenizer`."""

    def __init__(self, checkpoint: ModuleInMemory, tokenizer: str):
        self._checkpoint, self.tokenizer = checkpoint, tokenizer

    @property
    def model(self) -> str:
        return str(self._checkpoint.path)

    def request(self, asked: Request) -> Request:
        """Asks the same of the module. Raises UsageError."""
        assert isinstance(asked.options, TorchOptions)
        if asked.noise_floor is not None:
            raise UsageError("noise_floor: runs a base from its files, and takes a model's folder")
        return replace(asked, options=InMemoryOptions(self._checkpoint, asked.options))


@contextmanager
def in_memory(module: "nn.Module", tokenizer: Any) -> Iterator[InMemory]:
    """A module as it is asked for in a block.

    `tokenizer`: a folder or hub id, or a tokenizer of transformers' that can be saved. Raises
    UsageError, CheckpointError.
    """
    with tempfile.TemporaryDirectory(prefix="scoremode-") as home:
        folder = Path(home) / type(module).__name__
        folder.mkdir()
        checkpoint = ModuleInMemory.of(module, folder)
        if tokenizer is None:
            raise UsageError(
                f"{checkpoint.source}: has no tokenizer: give tokenizer=, a folder, a hub id or a "
                "tokenizer of transformers'"
            )
        if hasattr(tokenizer, "save_pretrained"):
            saved = Path(home) / "tokenizer"
            tokenizer.save_pretrained(saved)
            tokenizer = saved
        yield InMemory(checkpoint, str(tokenizer))

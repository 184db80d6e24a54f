"""The steps of a ladder, by headers alone: which there are, each as a command line, and why others are
left out."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from scoremode.checkpoint.bulk_io import hash_file
from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.checkpoint.model_files import resolve_model
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import UsageError
from scoremode.llama_cpp.tool import Tool
from scoremode.results.ladder import FILE_NOISE, KINDS, NOISE, TOP
from scoremode.schemes.resolve import resolve

# The folder of the runs that compare a step with the one before.
AFTER = "after"
# Characters of a word that a manifest has whole.
_LONGEST = 1000
# llama-perplexity's own predictions, and those of our step before as such a file holds them.
PREDICTIONS, EXPORTED = "llama-perplexity.kld", "exported.kld"


@dataclass(frozen=True)
class LadderRequest:
    """A ladder to be made.

    - `model`, `base`: as the user named them.
    - `text`: words of the command line that name text and protocol; `again`: those of them that a step
      behind the top needs, which has the top's text; `files`: those on this machine that they name.
    - `model_words`, `base_words`: those that say more of either, such as a revision; `tokenizer`: that
      of both.
    - `torch`, `vllm`: those of each engine.
    - `options`: of the torch engine, whose dtype is the ladder's.
    - `skip`: steps that the user doesn't want.
    - `vllm_python`: the interpreter that has vLLM, None for this one.
    - `llama_cpp`: llama-perplexity, or the reason why there is none for this ladder.
    - `output`: the folder that all goes to.
    - `keep`: whether the steps' states stay.
    """

    model: str
    base: str
    options: TorchOptions
    output: Path
    revision: str | None = None
    base_revision: str | None = None
    text: Sequence[str] = ()
    again: Sequence[str] = ()
    files: Sequence[Path] = ()
    model_words: Sequence[str] = ()
    base_words: Sequence[str] = ()
    tokenizer: Sequence[str] = ()
    torch: Sequence[str] = ()
    vllm: Sequence[str] = ()
    skip: Sequence[str] = ()
    vllm_python: Path | None = None
    llama_cpp: Tool | str = "not looked for"
    keep: bool = False
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """A step as it is foreseen.

    - `words`: of the command line that makes its run, without the program's name; `left_out`: why there
      is none, else None.
    - `of`: whose predictions they are; `engine`: what computes them.
    """

    name: str
    words: tuple[str, ...]
    of: Literal["base", "model"]
    engine: Literal["torch", "vllm", "llama.cpp"] = "torch"
    left_out: str | None = None


@dataclass(frozen=True, eq=False)
class Plan:
    """The steps of a ladder, the top first.

    - `noise`: the words of the last step of the torch engine, `noise_of`, computed otherwise.
    - `model`, `base`: as they were opened; `asked`: facts that two calls must share to be of one
      ladder.
    """

    model: Checkpoint
    base: Checkpoint
    steps: tuple[Planned, ...]
    noise: tuple[str, ...]
    noise_of: str
    asked: dict[str, Any]

    @property
    def chain(self) -> list[Planned]:
        """The steps that can be made."""
        return [step for step in self.steps if step.left_out is None]


def plan_ladder(request: LadderRequest) -> Plan:
    """The steps of a ladder, from the headers of its model and its base. Raises ScoremodeError."""
    code = request.options.trust_remote_code
    model = open_checkpoint(resolve_model(request.model, request.revision), code=code)
    base = open_checkpoint(resolve_model(request.base, request.base_revision), code=code)
    dtype = _dtype(request.options, model)
    made = _Made(request, dtype, model)
    steps = (made.top(), *map(made.step, KINDS))
    torch = [s for s in steps[1:] if s.left_out is None and s.engine == "torch"]
    if not torch:
        raise UsageError("ladder: no step of the torch engine is left, and each has the one before")
    last = torch[-1]
    changed = _computed_otherwise(last.words, dtype)
    return Plan(
        model,
        base,
        steps,
        changed,
        last.name,
        {
            "model": {"name": request.model, "fingerprint": model.fingerprint},
            "base": {"name": request.base, "fingerprint": base.fingerprint},
            "text": shown(request.text),
            "files": dict(_hashes(request.files)),
            "tokenizer": list(request.tokenizer),
            "dtype": dtype,
            "torch": list(request.torch),
            "vllm": list(request.vllm),
        },
    )


def _hashes(files: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Each file's path and sha256, of a folder those in it; what is no file, such as a pipe, or can't
    be read is left to the run that needs it."""
    for file in files:
        with suppress(OSError):
            for each in sorted(file.iterdir()) if file.is_dir() else [file]:
                if each.is_file():
                    yield str(each), hash_file(each)


def _dtype(options: TorchOptions, model: Checkpoint) -> str:
    """The dtype of all steps but the top: a GGUF file's is float32, as llama.cpp computes it."""
    from scoremode.engines.torch.builder import is_gguf_checkpoint

    if options.dtype == "auto" and is_gguf_checkpoint(model):
        return "float32"
    return options.in_dtype_of(model).dtype


def _computed_otherwise(words: Sequence[str], dtype: str) -> tuple[str, ...]:
    """The command line of a step in another arithmetic that is as right: in float32, or there, as
    llama.cpp's arithmetic is without a `--dtype`, with another attention."""
    if dtype == "float32" or "--dtype" not in words:
        return (*words, "--attention", "eager")
    place = words.index("--dtype") + 1
    return (*words[:place], "float32", *words[place + 1 :])


class _Made:
    """Makes the steps of one ladder."""

    def __init__(self, request: LadderRequest, dtype: str, model: Checkpoint):
        from scoremode.engines.torch.builder import is_gguf_checkpoint

        self._request, self._dtype = request, dtype
        self._is_gguf = is_gguf_checkpoint(model)
        schemes = resolve(model)
        declared = {s.inputs for s in schemes.quantized.values() if s.inputs and s.inputs.declared}
        self._has_inputs = bool(declared) and not self._is_gguf
        self._has_cache = schemes.config is not None and schemes.config.kv_cache is not None
        self._how: dict[str, Callable[[], Planned]] = {
            "base": self._base,
            "weights": lambda: self._torch("weights", "--arithmetic", "weights"),
            "inputs": self._inputs,
            "kv-cache": self._cache,
            "vllm-prefill": lambda: self._vllm("vllm-prefill"),
            "vllm-decode": lambda: self._vllm("vllm-decode", "--decode"),
            "llama.cpp": self._llama_cpp,
            "llama-perplexity": self._llama_perplexity,
        }

    def top(self) -> Planned:
        request = self._request
        words = ("reference", *self._of_base(), *request.text, *request.torch)
        return Planned(TOP, (*words, "--dtype", "float32", *self._into(TOP)), "base")

    def step(self, name: str) -> Planned:
        if name in self._request.skip:
            return _without(name, "by --skip")
        return self._how[name]()

    def _base(self) -> Planned:
        if self._dtype == "float32":
            return _without("base", "all steps compute in float32, as the top does")
        request = self._request
        words = ("kld", *self._of_base(), *request.again, *request.torch)
        return Planned("base", (*words, "--dtype", self._dtype, *self._against("base")), "base")

    def _inputs(self) -> Planned:
        if not self._has_inputs:
            return _without("inputs", "the model declares no quantized inputs")
        return self._torch("inputs", "--arithmetic", "weights+activations")

    def _cache(self) -> Planned:
        if not self._has_cache:
            return _without("kv-cache", "the model declares no quantized KV cache")
        return self._torch("kv-cache", "--arithmetic", "auto", "--kv-cache", "as-declared")

    def _torch(self, name: str, *how: str) -> Planned:
        words = (*self._model(), *self._request.torch, "--dtype", self._dtype, *how)
        return Planned(name, (*words, *self._against(name)), "model")

    def _vllm(self, name: str, *how: str) -> Planned:
        request = self._request
        if self._is_gguf:
            return _without(name, "vLLM is given no GGUF file: its own reader has few of them")
        if request.vllm_python is None and find_spec("vllm") is None:
            return _without(
                name,
                "vLLM is not installed here: --vllm-python PATH names an environment that has it",
            )
        words = (*self._model(), "--engine", "vllm", *request.vllm, "--dtype", self._dtype, *how)
        return Planned(name, (*words, *self._against(name)), "model", "vllm")

    def _llama_cpp(self) -> Planned:
        if not self._is_gguf:
            return _without("llama.cpp", "the model is no GGUF file")
        words = (*self._model(), *self._request.torch, "--arithmetic", "llama.cpp")
        return Planned("llama.cpp", (*words, *self._against("llama.cpp")), "model")

    def _llama_perplexity(self) -> Planned:
        name, tool = "llama-perplexity", self._request.llama_cpp
        if not self._is_gguf:
            return _without(name, "the model is no GGUF file")
        if isinstance(tool, str):
            return _without(name, tool)
        output = self._request.output
        words = (
            "kld",
            str(output / PREDICTIONS),
            "--reference",
            str(output / TOP),
            *self._device(),
        )
        return Planned(name, (*words, "--label", name, *self._into(name)), "model", "llama.cpp")

    def _device(self) -> list[str]:
        return [word for word in self._request.torch if word.startswith("--device=")]

    def _model(self) -> tuple[str, ...]:
        request = self._request
        return ("kld", request.model, *request.model_words, *request.tokenizer, *request.again)

    def _of_base(self) -> tuple[str, ...]:
        request = self._request
        return (request.base, *request.base_words, *request.tokenizer)

    def _against(self, name: str) -> tuple[str, ...]:
        top = str(self._request.output / TOP)
        return ("--reference", top, "--keep", "--label", name, *self._into(name))

    def _into(self, name: str) -> tuple[str, ...]:
        return ("-o", str(self._request.output / name))


def _without(name: str, why: str) -> Planned:
    return Planned(name, (), "model", left_out=why)


def after_words(request: LadderRequest, planned: Planned, before: str) -> tuple[str, ...]:
    """The command line that compares a step's kept predictions with those of the step before; no layer
    runs."""
    name = PREDICTIONS if planned.engine == "llama.cpp" else planned.name
    return _replayed(request, name, before, planned.name, AFTER)


def file_noise_words(request: LadderRequest, before: str) -> tuple[str, ...]:
    """The command line that compares a step with its own predictions in llama.cpp's file."""
    return _replayed(request, EXPORTED, before, FILE_NOISE, NOISE)


def _replayed(
    request: LadderRequest, model: str, before: str, label: str, into: str
) -> tuple[str, ...]:
    output = request.output
    device = [word for word in request.torch if word.startswith("--device=")]
    words = ("kld", str(output / model), "--reference", str(output / before), "--label", label)
    return (*words, *device, "-o", str(output / into))


def noise_words(request: LadderRequest, plan: Plan) -> tuple[str, ...]:
    """The command line that computes the last step of the torch engine otherwise, against itself."""
    found, output = [word for word in plan.noise if word != "--keep"], request.output
    places = {"--reference": output / plan.noise_of, "-o": output / NOISE, "--label": NOISE}
    for flag, value in places.items():
        found[found.index(flag) + 1] = str(value)
    return tuple(found)


def foreseen(request: LadderRequest) -> dict[str, Any]:
    """What a ladder would do: its steps, each with its command line or why it is left out."""
    plan = plan_ladder(request)
    rows: list[dict[str, Any]] = []
    before: str | None = None
    for step in plan.steps:
        row = _row(step.name, step.words, before)
        if step.left_out is not None:
            row |= {"before": None, "left_out": step.left_out, "command": None}
        else:
            if before not in (None, TOP):
                row["after_command"] = ["scoremode", *after_words(request, step, str(before))]
            if step.engine == "vllm" and request.vllm_python is not None:
                row["python"] = str(request.vllm_python)
            if step.engine == "llama.cpp" and not isinstance(request.llama_cpp, str):
                row["python"] = str(request.llama_cpp.path)
            before = step.name
        rows.append(row)
    noise = _row(NOISE, noise_words(request, plan), plan.noise_of)
    return {"output": str(request.output), "steps": rows, "noise": noise}


def shown(words: Sequence[str]) -> list[str]:
    """Words of a command line as a manifest has them: a text that is long by its sha256."""
    return [
        word
        if len(word) <= _LONGEST
        else f"{word.partition('=')[0]}=<sha256 {sha256(word.encode()).hexdigest()}>"
        for word in words
    ]


def _row(name: str, words: Sequence[str], before: str | None) -> dict[str, Any]:
    return {
        "step": name,
        "before": before,
        "left_out": None,
        "command": ["scoremode", *shown(words)],
        "after_command": None,
        "python": None,
    }

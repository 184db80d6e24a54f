"""Sections of a record on models: the checkpoint, its tokenizer, the engine, a base that is kept.

Sources: docs/record.md, which is made of these types and of `results.record.definition`.
"""

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from scoremode.results.record.section import Count, Metric, Positive, Section, Sha256

FloatType = Literal["bfloat16", "float16", "float32"]


class Device(Section, frozen=True, kw_only=True):
    type: str
    name: str
    threads: Count | None
    memory_bytes: Count | None = None


class KvScales(Section, frozen=True, kw_only=True):
    source: str
    windows: Count | UnsetType = UNSET
    tokens: Count | UnsetType = UNSET
    k: list[list[float] | None] | None = None
    v: list[list[float] | None] | None = None


class KvCache(Section, frozen=True, kw_only=True):
    k: str
    v: str
    layers: Count
    scales: KvScales | None


class Activations(Section, frozen=True, kw_only=True):
    declared: str | None
    ran: str | None


class Product(Section, frozen=True, kw_only=True):
    format: str
    inputs: str
    product: str
    native: bool
    linears: Count


class TorchEngine(Section, frozen=True, kw_only=True, tag_field="engine", tag="torch"):
    """The torch engine as a record describes it."""

    torch: str | UnsetType = UNSET
    vocabulary: Count
    model_class: str | UnsetType = UNSET
    dtype: str
    arithmetic: str
    activations: Activations | None = None
    products: list[Product] | UnsetType = UNSET
    attention: str
    kv_cache_dtype: str | None = None
    kv_cache: KvCache | UnsetType = UNSET
    kv_scales_sha256: str | UnsetType = UNSET
    text_alone: str | None = None
    device: Device
    devices: list[dict[str, Any]] | UnsetType = UNSET
    batch_windows: Count | None = None
    placement: str | None = None
    kernels: dict[str, Any] | UnsetType = UNSET
    fused: dict[str, Any] | UnsetType = UNSET
    layers: str | UnsetType = UNSET
    prefixes: str | UnsetType = UNSET
    experts: str | None = None
    head: dict[str, Any] | None = None
    tokens: Count
    seconds: dict[str, float]
    peak_bytes: Count
    estimated_bytes: Count | UnsetType = UNSET
    chunks: list[str] | UnsetType = UNSET
    unused_tensors: list[str]


class VllmEngine(TorchEngine, frozen=True, kw_only=True, tag_field="engine", tag="vllm"):
    """The vLLM engine: all of the torch engine's fields, and its own."""

    vllm: str
    runner: str
    linear: dict[str, Any]
    head_dtype: str
    tensor_parallel_size: Count
    pipeline_parallel_size: Count
    path: str | UnsetType = UNSET
    problem: str | None = None
    phase: str | UnsetType = UNSET
    cuda_graphs: str | UnsetType = UNSET
    max_num_seqs: Count | UnsetType = UNSET
    prefilled_targets: Count | UnsetType = UNSET
    arguments: dict[str, str] | UnsetType = UNSET


class Replayed(Section, frozen=True, kw_only=True):
    """Kept predictions that a run was made of, in place of a model."""

    kind: Literal["stored", "llama.cpp"]
    source: str
    path: str
    sha256: Sha256
    run_sha256: Sha256 | UnsetType = UNSET
    logits: str | UnsetType = UNSET
    engine: dict[str, Any] | UnsetType = UNSET
    fingerprint: Sha256 | UnsetType = UNSET
    step_nats: float | UnsetType = UNSET
    reach_nats: float | UnsetType = UNSET
    check: "Replay | None" = None


class ReplayEngine(TorchEngine, frozen=True, kw_only=True, tag_field="engine", tag="replay"):
    """Kept predictions: the torch engine's fields say how they were computed, and where they were
    scored once more."""

    replayed: Replayed


class Probed(Section, frozen=True, kw_only=True):
    """What a server was found to give before anything was scored."""

    gives: str
    aligned: str
    tokenizer: str
    adds: int | None


class HttpEngine(TorchEngine, frozen=True, kw_only=True, tag_field="engine", tag="http"):
    """A server, as far as it says what it is."""

    server: str
    version: str | None
    model: str
    top: Positive
    probed: Probed


class TakenModules(Section, frozen=True, kw_only=True):
    pattern: str
    source: str
    path: str
    fingerprint: str
    is_base: bool
    modules: Count
    differing: list[str]


class Mixture(Section, frozen=True, kw_only=True):
    source: str
    taken: list[TakenModules]


class BitsPerWeight(Section, frozen=True, kw_only=True):
    body: float | None
    file: float | None


class CheckpointFiles(Section, frozen=True, kw_only=True):
    source: str
    path: str | UnsetType = UNSET
    fingerprint: str
    files: dict[str, str] | UnsetType = UNSET
    bytes: Count | UnsetType = UNSET
    gib: float | None = None
    not_decoded: str | UnsetType = UNSET
    mixture: Mixture | UnsetType = UNSET


class Checkpoint(CheckpointFiles, frozen=True, kw_only=True):
    """A model's files. Where vLLM alone decodes them there are no bits per weight, by `not_decoded`."""

    bits_per_weight: BitsPerWeight
    parameters: Count | None = None
    quantized_parameters: Count | None = None
    formats: dict[str, dict[str, Any]]
    kv_cache_declared: str | None

    def __post_init__(self) -> None:
        if self.bits_per_weight.file is None and self.not_decoded is UNSET:
            raise ValueError("has no bits_per_weight.file")


class AddedTokens(Section, frozen=True, kw_only=True):
    front: list[Count]
    behind: list[Count]


class Tokenizer(Section, frozen=True, kw_only=True):
    source: str
    sha256: str
    size: Count
    bos: Count | None = None
    adds: AddedTokens | UnsetType = UNSET
    auto_tokenizer: dict[str, Any] | None = None


class HeadHashes(Section, frozen=True, kw_only=True):
    weight: Sha256
    bias: Sha256 | UnsetType = UNSET


class HeadPlace(Section, frozen=True, kw_only=True):
    source: str
    path: str
    weight: str
    bias: str | None


class Head(Section, frozen=True, kw_only=True):
    """A kept head: its weight is in a `file` of the run's folder, or in the `checkpoint`."""

    vocabulary: Positive
    scale: float
    softcap: float | None
    dtype: FloatType
    width: Positive
    sha256: HeadHashes
    file: str | None
    checkpoint: HeadPlace | None

    def __post_init__(self) -> None:
        if self.file is None and self.checkpoint is None:
            raise ValueError("has no file")


class Replay(Section, frozen=True, kw_only=True):
    rows: Count
    bitwise: bool
    rms: float
    worst: float


class ReferenceCheckpoint(CheckpointFiles, frozen=True, kw_only=True):
    bits_per_weight: BitsPerWeight | UnsetType = UNSET


class Reference(Section, frozen=True, kw_only=True):
    kind: str | UnsetType = UNSET
    source: str
    label: str | UnsetType = UNSET
    path: str | UnsetType = UNSET
    checksum: str | UnsetType = UNSET
    sha256: str | UnsetType = UNSET
    fingerprint: str | UnsetType = UNSET
    states_sha256: str | UnsetType = UNSET
    checkpoint: ReferenceCheckpoint | None = None
    files: dict[str, str] | UnsetType = UNSET
    tokenizer: Tokenizer | UnsetType = UNSET
    engine: dict[str, Any] | UnsetType = UNSET
    metrics: dict[str, Metric] | UnsetType = UNSET
    head: Head | UnsetType = UNSET
    arithmetic: str | None = None
    replay_at_load: Replay | None = None
    replay: Replay | None = None


class StatesFile(Section, frozen=True, kw_only=True):
    name: str
    rows: Positive
    sha256: Sha256


class States(Section, frozen=True, kw_only=True):
    dtype: FloatType
    width: Positive
    rows: Positive
    files: list[StatesFile]


class TokensFile(Section, frozen=True, kw_only=True):
    name: str
    sha256: Sha256


class Kept(Section, frozen=True, kw_only=True):
    states: States
    head: Head
    tokens: TokensFile | UnsetType = UNSET
    sha256: Sha256

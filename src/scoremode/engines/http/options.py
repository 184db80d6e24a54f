"""The http engine's options, and the served model that they open: there before torch is."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from scoremode.checkpoint.config import language_config
from scoremode.checkpoint.files import Checkpoint, config_of
from scoremode.checkpoint.model_files import ModelFiles, resolve_local, tokenizer_places
from scoremode.checkpoint.tokenizer import checkpoint_tokenizer
from scoremode.checkpoint.virtual import Unread
from scoremode.engines.http.client import Client
from scoremode.engines.http.servers import SglangServer, VllmServer, find_server
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import EngineError, UsageError
from scoremode.lib.json import json_digest
from scoremode.text.plan import Plan

if TYPE_CHECKING:
    import torch

    from scoremode.engines.base import BaseEngine
    from scoremode.engines.http.engine import HttpEngine


@dataclass(frozen=True, eq=False)
class ServedModel(Unread):
    """A model behind a server, of which there are no files here but a config and a tokenizer.

    - `tokenizer`: the files of the tokenizer that its token ids are of.
    """

    server: VllmServer | SglangServer = field(kw_only=True, repr=False)
    tokenizer: ModelFiles = field(kw_only=True)

    @property
    def place(self) -> str:
        return f"{self.source} at {self.host}"

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"{self.source} at {self.server.client.address}"

    @property
    def host(self) -> str:
        return self.server.client.address.host

    def check_unchanged(self) -> None:
        """Raises EngineError where the server says of itself other than it did."""
        now = find_server(self.server.client, self.server.model)
        for name in ("kind", "version", "longest", "state"):
            before, after = getattr(self.server, name), getattr(now, name)
            if before != after:
                raise EngineError(
                    f"{self.name}: is not the server any more that the run began with: its {name} was "
                    f"{before} and is {after}"
                )

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the host and of what the server says of itself and the model."""
        own = self.server
        return json_digest([self.host, own.kind, own.version, own.model, dict(own.state)])

    def stop_hashing(self) -> None:
        """Ends the connections, with whatever began beside it."""
        self.server.client.close()

    def summary(self) -> dict[str, Any]:
        return {
            "parameters": None,
            "bits_per_weight": {"body": None, "file": None},
            "formats": {"served": {}},
            "not_decoded": "served: its weights are the server's",
            "kv_cache_declared": None,
        }


@dataclass(frozen=True)
class HttpOptions:
    """A user's choices.

    - `base_url`, `model`: of the server, and the name of one of its models, None for the only one.
    - `key`: the environment variable that has the key.
    - `concurrency`: requests at a time. `top`: the likeliest ids that are asked for at each place.
    - `base`: options of a base beside it.
    """

    base_url: str
    model: str | None = None
    key: str | None = None
    concurrency: int = 8
    top: int = 1
    timeout: float = 600
    base: TorchOptions = field(default_factory=TorchOptions)

    modules: ClassVar[Sequence[str]] = ("scoremode.engines.http.engine",)
    # The server decides.
    attentions: ClassVar[Sequence[str]] = ()
    runs_beside: ClassVar[bool] = True
    reads_gguf: ClassVar[bool] = True
    mixes: ClassVar[bool] = False

    @property
    def trust_remote_code(self) -> bool:
        """False: no model's code runs here but a base's, by its own options."""
        return False

    @property
    def dtype(self) -> str:
        return "auto"

    @property
    def gpu(self) -> int | None:
        """None: only a base computes here, which may be a kept one."""
        return None

    def opened(self, model: ModelFiles, tokenizer: ModelFiles | None) -> ServedModel:
        """The served model. `model`: files with a config or at least a tokenizer.

        Raises UsageError, EngineError, CheckpointError, TokenizerError.
        """
        key = None
        if self.key is not None and not (key := os.environ.get(self.key)):
            raise UsageError(f"--api-key-env {self.key}: there is no such environment variable")
        client = Client(self.base_url, key, self.timeout)
        try:
            return self._opened(find_server(client, self.model), resolve_local(model), tokenizer)
        except BaseException:
            client.close()
            raise

    def _opened(
        self, server: VllmServer | SglangServer, files: ModelFiles, tokenizer: ModelFiles | None
    ) -> ServedModel:
        own = tokenizer_places(tokenizer, files)[0]
        has_config = files.is_gguf or (files.path / "config.json").is_file()
        config: Mapping[str, Any] = config_of(files) if has_config else {}
        if "vocab_size" not in language_config(config):
            config = {**config, "vocab_size": checkpoint_tokenizer(own).size}
        return ServedModel(files.path, server.model, config, {}, server=server, tokenizer=own)

    def make(
        self,
        checkpoint: Checkpoint,
        vocabulary: int | None,
        plan: Plan,
        notify: Callable[[str], None],
        ranks: object = None,
    ) -> "HttpEngine":
        from scoremode.engines.http.engine import HttpEngine

        assert isinstance(checkpoint, ServedModel) and ranks is None
        return HttpEngine(checkpoint, self, plan, vocabulary, notify)

    def make_base(
        self, checkpoint: Checkpoint, vocabulary: int | None, longest: int
    ) -> "BaseEngine":
        return self.base.make_base(checkpoint, vocabulary, longest)

    def of_base(self, checkpoint: Checkpoint) -> TorchOptions:
        return self.base.of_base(checkpoint)

    def in_dtype_of(self, checkpoint: Checkpoint) -> Self:
        """The same: what a server computes in it doesn't say."""
        return self

    def in_dtype(self, name: str) -> Self:
        return self

    def keeping(self) -> Self:
        return self

    def sharing(self, held: "Callable[[torch.device], int]") -> Self:
        """The same; a base has all of the device."""
        from scoremode.engines.torch.device import choose_device

        held(choose_device(self.base.device, self.base.max_memory, self.base.memory_share).torch)
        return self

    def computing(self, dtype: Any, attention: Any = None) -> Self:
        raise EngineError("a server computes as it does, in no other dtype")

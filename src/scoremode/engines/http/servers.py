"""The servers that give log-probabilities of a prompt's own tokens, each in its own words.

Sources: vLLM 0.32 (`entrypoints/openai/completion`), SGLang of November 2026 (`managers/
tokenizer_manager.py`). What the other servers lack is said where they are refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from scoremode.engines.http.client import Client
from scoremode.errors import EngineError, InvalidMeasurement

# Bytes of a reply for each log-probability in it: id, number, rank, and the token's text in JSON.
_ENTRY = 400
_SMALL = 1 << 20
_CUT = -9999.0
# Nothing that would change a distribution, whatever the server's defaults are.
_PLAIN = {
    "temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
    "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip
_OTHERS = "vLLM (prompt_logprobs) and SGLang (/generate with return_logprob) do"


@dataclass(frozen=True, eq=False)
class Answer:
    """A server's log-probabilities of a window of n tokens: row i is of its token i + 1.

    - `logprob` float64 [n-1]: of that token.
    - `ids` int32 [n-1, K], `logprobs` float64 [n-1, K]: all that the server gave of the row's
      distribution, the token's own among them; behind the last, -1 and -inf.
    """

    logprob: NDArray[np.float64]
    ids: NDArray[np.int32]
    logprobs: NDArray[np.float64]

    @property
    def top1(self) -> NDArray[np.int64]:
        """int64 [n-1]: the place of each row's likeliest id, the smallest id on ties."""
        best = self.logprobs == self.logprobs.max(1, keepdims=True)
        return np.where(best, self.ids, np.iinfo(np.int32).max).argmin(1)


class Server(Protocol):
    """One served model.

    - `kind`: the server's name; `version`: as it says, None where it doesn't; `model`: the name that it
      serves the model under; `longest`: tokens of a window at most, None where it doesn't say.
    - `state`: more that a model is told from another by.
    """

    kind: ClassVar[str]

    @property
    def version(self) -> str | None: ...

    @property
    def model(self) -> str: ...

    @property
    def longest(self) -> int | None: ...

    @property
    def state(self) -> Mapping[str, Any]: ...

    def score(self, tokens: Sequence[int], top: int) -> Answer:
        """All tokens of a window but its first, with the `top` likeliest ids of each place.

        Raises ServerError, and InvalidMeasurement for an answer that is not of these tokens.
        """
        ...

    def next(self, tokens: Sequence[int], top: int) -> dict[int, float]:
        """The `top` likeliest ids behind some tokens, as the server generates: id → log-probability."""
        ...


@dataclass(frozen=True)
class _Served:
    client: Client
    model: str
    version: str | None
    longest: int | None
    state: Mapping[str, Any]

    def tokenized(self, text: str, *, special: bool) -> list[int] | None:
        """The server's own tokens of a text; None where it has no such page."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": special}
        found = self.client.tried("/tokenize", body)
        tokens = found.get("tokens") if isinstance(found, dict) else None
        return tokens if isinstance(tokens, list) and all(map(_is_id, tokens)) else None


class VllmServer(_Served):
    """vLLM, and what speaks as it does: `prompt_logprobs` of /v1/completions."""

    kind = "vLLM"

    def score(self, tokens: Sequence[int], top: int) -> Answer:
        choice = self._choice(tokens, top, prompt_logprobs=top, return_token_ids=True)
        rows = choice.get("prompt_logprobs")
        if rows is None:
            raise EngineError(
                f"{self.client.address}: gives no log-probabilities of a prompt: {_OTHERS}"
            )
        # Not in releases before 0.10; a row has its token's id in any case.
        echoed = choice.get("prompt_token_ids")
        if echoed is not None and echoed != list(tokens):
            _other(self.client, "scored other tokens than those that were sent")
        _count(self.client, rows, tokens)
        entries = [
            {_id(key): _number(one, "logprob") for key, one in _object(row).items()}
            for row in rows[1:]
        ]
        return _answer(self.client, tokens, entries, top)

    def next(self, tokens: Sequence[int], top: int) -> dict[int, float]:
        found = self._choice(tokens, top, logprobs=top, return_tokens_as_token_ids=True)
        try:
            (row,) = found["logprobs"]["top_logprobs"]
            return {_id(key.removeprefix("token_id:")): _number(row, key) for key in row}
        except (TypeError, KeyError, ValueError):
            _other(self.client, "gave no log-probabilities of the next token")

    def _choice(self, tokens: Sequence[int], top: int, **asked: Any) -> dict[str, Any]:
        # It refuses to generate nothing but for an echo, which would cut what it says.
        body = {"model": self.model, "prompt": list(tokens), "max_tokens": 1, **_PLAIN, **asked}
        most = _SMALL + _ENTRY * (top + 1) * len(tokens)
        reply = self.client.post("/v1/completions", body, most)
        choices = reply.get("choices") if isinstance(reply, dict) else None
        if not (isinstance(choices, list) and len(choices) == 1):
            _other(self.client, "gave no choice")
        return _object(choices[0])


class SglangServer(_Served):
    """SGLang's own /generate."""

    kind = "SGLang"

    def score(self, tokens: Sequence[int], top: int) -> Answer:
        found = self._meta(tokens, top, logprob_start_len=0)
        own, others = found.get("input_token_logprobs"), found.get("input_top_logprobs")
        if not own or not others:
            raise EngineError(
                f"{self.client.address}: gives no input_token_logprobs with return_logprob"
            )
        _count(self.client, own, tokens)
        _count(self.client, others, tokens)
        if [_pair(one)[0] for one in own] != list(tokens):
            _other(self.client, "scored other tokens than those that were sent")
        entries = []
        for one, row in zip(own[1:], others[1:], strict=True):
            best = dict(map(_pair, _list(row)))
            if len(best) != top:
                _other(self.client, f"gave {len(best)} likeliest ids where {top} were asked for")
            entries.append(best | dict([_pair(one)]))
        return _answer(self.client, tokens, entries, top)

    def next(self, tokens: Sequence[int], top: int) -> dict[int, float]:
        rows = self._meta(tokens, top).get("output_top_logprobs")
        if not (isinstance(rows, list) and len(rows) == 1):
            _other(self.client, "gave no log-probabilities of the next token")
        return dict(map(_pair, _list(rows[0])))

    def _meta(self, tokens: Sequence[int], top: int, **asked: Any) -> dict[str, Any]:
        body = {
            "input_ids": list(tokens),
            "sampling_params": {"max_new_tokens": 1, **_PLAIN},
            "return_logprob": True,
            "top_logprobs_num": top,
            "return_text_in_logprobs": False,
            **asked,
        }
        most = _SMALL + _ENTRY * (top + 1) * len(tokens)
        found = _object(self.client.post("/generate", body, most)).get("meta_info")
        if not isinstance(found, dict) or found.get("prompt_tokens") != len(tokens):
            _other(self.client, f"has read other than the {len(tokens)} tokens that were sent")
        return found


def find_server(client: Client, name: str | None) -> VllmServer | SglangServer:
    """The served model called `name`, or the only one. Raises ServerError, and EngineError for a server
    that gives no log-probabilities of a prompt."""
    listed = client.tried("/v1/models")
    models = {
        str(one["id"]): one
        for one in (listed.get("data") or [] if isinstance(listed, dict) else [])
        if isinstance(one, dict) and "id" in one
    }
    if not models:
        raise EngineError(
            f"{client.address}: lists no models at {client.address.path}/v1/models: is --base-url "
            "right?"
        )
    names = ", ".join(list(models)[:8])
    if name is None and len(models) > 1:
        raise EngineError(f"{client.address}: serves {names}: --model-name says which")
    if name is not None and name not in models:
        raise EngineError(f"{client.address}: --model-name {name}: it serves {names}")
    name = name or next(iter(models))
    own = models[name]
    owner = str(own.get("owned_by"))
    if owner == "llamacpp" or _said(client, "/props", "build_info"):
        raise EngineError(
            f"{client.address}: is llama-server, which gives log-probabilities of what it generates "
            "and none of a prompt (llama.cpp issue 27174, PR 15189): score its file instead: scoremode "
            "ppl FILE.gguf --arithmetic llama.cpp"
        )
    if _said(client, "/info", "max_total_tokens") and _said(client, "/info", "model_sha"):
        raise EngineError(
            f"{client.address}: is text-generation-inference, which takes text instead of token ids, "
            f"and says of a prompt's token neither its rivals nor which is likeliest: {_OTHERS}"
        )
    longest = own.get("max_model_len")
    # One token is generated behind a window.
    room = longest - 1 if isinstance(longest, int) else None
    state = {key: own[key] for key in ("root", "parent") if own.get(key) is not None}
    if owner == "sglang":
        version = _said(client, "/server_info", "version") or _said(
            client, "/get_server_info", "version"
        )
        for page in ("/model_info", "/get_model_info"):
            for key in ("model_path", "weight_version"):
                if (value := _said(client, page, key)) is not None:
                    state[key] = value
        return SglangServer(client, name, version, room, state)
    return VllmServer(client, name, _said(client, "/version", "version"), room, state)


def _said(client: Client, page: str, key: str) -> str | None:
    found = client.tried(page)
    value = found.get(key) if isinstance(found, dict) else None
    return None if value is None else str(value)


def _answer(
    client: Client, tokens: Sequence[int], entries: list[dict[int, float]], top: int
) -> Answer:
    """An Answer of what was given for each token but the first."""
    width = max(len(row) for row in entries)
    ids = np.full((len(entries), width), -1, np.int32)
    logprobs = np.full(ids.shape, -np.inf)
    own = np.empty(len(entries))
    for i, (token, row) in enumerate(zip(tokens[1:], entries, strict=True)):
        if token not in row:
            _other(client, f"scored other tokens than were sent: token {i + 1} of a window")
        if not top <= len(row) <= top + 1:
            _other(client, f"gave {len(row)} log-probabilities where {top} and the token's are due")
        own[i] = row[token]
        ids[i, : len(row)] = list(row)
        logprobs[i, : len(row)] = list(row.values())
    return Answer(own, ids, logprobs)


def _count(client: Client, rows: Any, tokens: Sequence[int]) -> None:
    if not isinstance(rows, list) or len(rows) != len(tokens):
        n = len(rows) if isinstance(rows, list) else "no"
        _other(client, f"gave {n} rows for {len(tokens)} tokens")


def _other(client: Client, words: str) -> NoReturn:
    raise InvalidMeasurement(f"{client.address}: the server {words}")


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidMeasurement(f"a server's reply has {str(value)[:40]!r} in place of an object")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidMeasurement(f"a server's reply has {str(value)[:40]!r} in place of a list")
    return value


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _id(text: str) -> int:
    if not text.isdecimal() or not _is_id(int(text)):
        raise InvalidMeasurement(f"a server's reply has {text[:40]!r} in place of a token's id")
    return int(text)


def _number(entry: Any, key: Any) -> float:
    """A log-probability: NaN where JSON has null for it, -inf where vLLM writes -9999 for that."""
    try:
        value = entry[key]
        number = float("nan") if value is None else float(value)
        return float("-inf") if number <= _CUT else number
    except (TypeError, KeyError, IndexError, ValueError):
        raise InvalidMeasurement(
            f"a server's reply has {str(entry)[:40]!r} in place of a log-probability"
        ) from None


def _pair(entry: Any) -> tuple[int, float]:
    """SGLang's [log-probability, id, text or null]."""
    if not isinstance(entry, list) or len(entry) < 2 or not _is_id(entry[1]):
        raise InvalidMeasurement(f"a server's reply has {str(entry)[:40]!r} in place of a token")
    return entry[1], _number(entry, 0)

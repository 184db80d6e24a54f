"""Servers on this machine that speak as vLLM and SGLang do, of a real small model, with faults.

The shapes are those of vLLM 0.32, whose server the tests in tests/engines/vllm ask as well, and of
SGLang's source of November 2026 (`managers/tokenizer_manager.py`, `entrypoints/http_server.py`), which
nobody started here.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

# Given (path, body, reply): another reply, or (status, headers, bytes).
Spoil = Callable[[str, dict[str, Any], Any], Any]


@dataclass
class Served:
    """A running server. `spoil` makes faults of its replies; `seen`: (path, headers, body) so far."""

    model: Any
    tokenizer: Tokenizer
    dialect: str
    port: int = 0
    spoil: Spoil = lambda path, body, reply: reply
    seen: list[tuple[str, Mapping[str, str], dict[str, Any]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def logprobs(self, ids: list[int]) -> torch.Tensor:
        """float32 [N, V]: row i is of what follows token i."""
        # One at a time: threads of a test's machine are few.
        with self.lock, torch.inference_mode():
            return self.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)

    def reply(self, path: str, body: dict[str, Any]) -> Any:
        """What the dialect answers; None for a page that it lacks."""
        if path == "/v1/models":
            one = {"id": "tiny", "owned_by": self.dialect, "max_model_len": 512}
            return {"object": "list", "data": [one]}
        if path == "/tokenize":
            special = bool(body["add_special_tokens"])
            ids = self.tokenizer.encode(body["prompt"], add_special_tokens=special).ids
            return {"tokens": ids, "count": len(ids)}
        pages = {
            "vllm": {"/version": {"version": "0.32.0"}, "/v1/completions": self._completion},
            "sglang": {
                "/server_info": {"version": "0.5.9"},
                "/model_info": {"model_path": "tiny", "weight_version": "default"},
                "/generate": self._generate,
            },
            "llamacpp": {"/props": {"build_info": "b9000"}},
        }
        found: Any = pages.get(self.dialect, {}).get(path)
        return found(body) if callable(found) else found

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        ids, top = body["prompt"], body.get("prompt_logprobs")
        rows = self.logprobs(ids)
        choice: dict[str, Any] = {"index": 0, "text": "x", "logprobs": None}
        if top is not None:
            entries = [self._row(rows[i], top, own) for i, own in enumerate(ids[1:])]
            choice["prompt_logprobs"] = [None, *entries]
            choice["prompt_token_ids"] = ids
        if body.get("logprobs") is not None:
            best = self._row(rows[-1], body["logprobs"])
            named = {f"token_id:{key}": entry["logprob"] for key, entry in best.items()}
            choice["logprobs"] = {"top_logprobs": [named], "tokens": list(named)[:1]}
        return {"object": "text_completion", "model": "tiny", "choices": [choice]}

    @staticmethod
    def _row(row: torch.Tensor, top: int, own: int | None = None) -> dict[str, Any]:
        best = row.topk(top).indices.tolist()
        ids = best if own is None else list(dict.fromkeys([own, *best]))
        rank = {i: int((row > row[i]).sum()) + 1 for i in ids}
        return {
            str(i): {"logprob": float(row[i]), "rank": rank[i], "decoded_token": "x"} for i in ids
        }

    def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        ids, top = body["input_ids"], body["top_logprobs_num"]
        rows, best = self.logprobs(ids), []
        for row in rows:
            values, indices = row.topk(top)
            best.append([[float(v), int(i), None] for v, i in zip(values, indices, strict=True)])
        meta: dict[str, Any] = {"prompt_tokens": len(ids), "completion_tokens": 1}
        if body.get("logprob_start_len") == 0:
            own = [[float(rows[i, t]), t, None] for i, t in enumerate(ids[1:])]
            meta["input_token_logprobs"] = [[None, ids[0], None], *own]
            meta["input_top_logprobs"] = [None, *best[:-1]]
        meta["output_token_logprobs"] = [best[-1][0]]
        meta["output_top_logprobs"] = [best[-1]]
        return {"text": "x", "meta_info": meta}


@contextmanager
def serving(folder: Path, dialect: str = "vllm") -> Iterator[Served]:
    """The model in `folder`, in float32, behind a free port of this machine while the block lasts."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    served = Served(model, Tokenizer.from_file(str(folder / "tokenizer.json")), dialect)
    with answering(served.reply, served) as port:
        served.port = port
        yield served


@contextmanager
def answering(
    reply: Callable[[str, dict[str, Any]], Any], served: Served | None = None
) -> Iterator[int]:
    """A port of this machine at which `reply` answers while the block lasts: with JSON, or with
    (status, headers, bytes); None is a page that isn't there."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            self._answer(json.loads(self.rfile.read(length)))

        def _answer(self, body: dict[str, Any]) -> None:
            found = reply(self.path, body)
            if served is not None:
                served.seen.append((self.path, dict(self.headers), body))
                found = served.spoil(self.path, body, found)
            if found is None:
                found = 404, {}, b'{"detail": "Not Found"}'
            if not isinstance(found, tuple):
                found = 200, {}, json.dumps(found).encode()
            status, headers, content = found
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            # Of a client that has heard enough.
            with suppress(ConnectionError):
                self.end_headers()
                self.wfile.write(content)
            self.close_connection = headers.get("Connection") == "close"

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: a test's output is its own."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            # A client that has heard enough is no matter.
            if not isinstance(sys.exception(), ConnectionError):
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()

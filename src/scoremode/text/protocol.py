"""Protocols: how a text becomes windows, and which targets of them count.

"WikiText-2 at 2048" names half a measurement. The other half (which rows, how they are joined,
whether a BOS stands in front, what happens to overlaps and to the tail, how wide the softmax is,
how the average weighs) differs from tool to tool, and moves the result by more than most
quantizations do. A `Protocol` fixes all of it in one frozen value. Presets named after a tool reproduce
that tool (`disjoint` and `strided` are plain ones); a preset with a changed field is another protocol
and is called so (`exl3+stride=1024`).
"""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from scoremode.errors import ProtocolError
from scoremode.lib.json import json_digest
from scoremode.text.stopping import stop_rule

__all__ = ["PRESETS", "Protocol", "TextRule", "preset"]

TextRule = Literal["rows", "nonblank-rows", "raw-file", "conversations", "pages", "requests"]
BosRule = Literal["auto", "always", "never"]
Vocabulary = Literal["config", "tokenizer", "head"]

# Tokens of the longest window of a conversation where nothing else is said.
_CHAT_LENGTH = 4096
# Fields that a protocol without them does not have, in records and in its hash: they came later.
_LATER = ("stop_when", "seed", "long")


@dataclass(frozen=True)
class Protocol:
    """A way of measuring a perplexity.

    **Fields**
    - `text`: `rows` joins all rows by an empty line, `nonblank-rows` drops blank rows first,
      `raw-file` is the file with one final newline dropped; `conversations` are each by itself what
      the model's chat template makes of them, with the BOS that it writes; `pages` are WikiText's
      articles, each by itself and detokenized (`text.task_requests`); `requests` are pairs of a context
      and a continuation (`text.task_requests`).
    - `bos`: whether there is a BOS; `auto` uses one where the tokenizer adds one by itself.
    - `bos_at`: where it goes. `special-tokens` leaves it to the tokenizer (which may add an EOS as
      well); `stream` puts it once in front of the tokens; `windows` does that, and then writes it
      *over* the first token of every window, which is lost. None puts one in front of each window.
    - `context_length`: tokens of a window; None takes the model's number of positions, for
      conversations 4,096, or the model's positions where a conversation has more tokens than these. Of
      pages and requests the most tokens that are read at a time, so that a window may have one more.
    - `stride`: tokens from one window's start to the next one's; None takes `context_length`.
    - `scored`: `all` targets but the window's first token, which nothing precedes; `new` ones that
      no earlier window held; the `second-half` (from position `context_length // 2 + 1`). Of
      conversations `all`, the tokens that the `assistant` generated, or those of its last turn, the
      `completion`. Of a request, as of a page, its `continuation`.
    - `tail`: a last window shorter than the others is kept (`keep`) or dropped (`drop`);
      `drop-exact` also drops a last window that fits exactly, as `range(0, N - L, S)` does.
    - `short_text`: a text not longer than one window is `one-window` or an `error`.
    - `min_contexts`: the text needs at least so many context lengths of tokens.
    - `max_windows`: only the first so many; with `all_windows_required` fewer are an error.
    - `vocabulary`: the softmax runs over the config's `vocab_size` entries, the `tokenizer`'s
      largest id plus one, or the whole `head`.
    - `average`: `token` is the mean over scored targets; `hf-guide` is the transformers guide's
      loop, which weighs a window's mean by one less than its targets after the first window.
    - `stop_when`: the rule by which a run ends before its last window, as `text.stopping` writes it,
      such as `ppl±0.5%`; None for all windows. `seed`: of the order in which windows are drawn then.
    - `long`: a conversation longer than a window has its first window alone (`truncate`), windows that
      each begin half a window before their new targets (`split`), or none (`skip`). None for texts.
    """

    name: str
    text: TextRule = "rows"
    bos: BosRule = "auto"
    bos_at: Literal["special-tokens", "stream", "windows"] = "special-tokens"
    context_length: int | None = 2048
    stride: int | None = None
    scored: Literal["all", "new", "second-half", "assistant", "completion", "continuation"] = "all"
    tail: Literal["keep", "drop", "drop-exact"] = "drop"
    short_text: Literal["one-window", "error"] = "error"
    min_contexts: int = 1
    max_windows: int | None = None
    all_windows_required: bool = False
    vocabulary: Vocabulary = "config"
    average: Literal["token", "hf-guide"] = "token"
    stop_when: str | None = None
    seed: int | None = None
    long: Literal["truncate", "split", "skip"] | None = None

    def override(self, **changes: Any) -> "Protocol":
        """This protocol with the fields in `changes` that are not None, renamed if any differ."""
        assert set(changes) <= {f.name for f in fields(self)}, changes
        wanted = {k: v for k, v in changes.items() if v is not None and v != getattr(self, k)}
        if self.stride is None and wanted.get("stride") == wanted.get(
            "context_length", self.context_length
        ):
            wanted.pop("stride", None)  # what None stands for
        if not wanted:
            return self
        suffix = "".join(
            f"+{f.name.replace('_', '-')}={wanted[f.name]}"
            for f in fields(self)
            if f.name in wanted
        )
        return replace(self, name=self.name + suffix, **wanted)

    def resolve(self, positions: int | None, longest: int | None = None) -> "Protocol":
        """This protocol with its lengths as numbers, checked.

        - `positions`: how many positions the model has, None if it has no limit or is not known.
        - `longest`: tokens that they reach by a scaling that isn't counted in them.

        Raises ProtocolError for lengths that make no window or exceed the model.
        """
        # Few conversations are longer, and what holds for most models is compared with most.
        usual = _CHAT_LENGTH if self.text == "conversations" else positions
        length = self.context_length if self.context_length is not None else usual
        if length is None:
            raise ProtocolError(
                f"protocol {self.name} takes the model's context length, and none is known: "
                "give --context-length"
            )
        stride = self.stride if self.stride is not None else length
        if length < 2:
            raise ProtocolError(f"context length {length}: a window needs at least 2 tokens")
        if stride < 1:
            raise ProtocolError(f"stride {stride}: must be at least 1")
        if self.max_windows is not None and self.max_windows < 1:
            raise ProtocolError(f"limit of {self.max_windows} windows: must be at least 1")
        if (self.stop_when is None) != (self.seed is None):
            raise ProtocolError(
                f"a seed of {self.seed} and a rule to stop by of {self.stop_when}: each needs the other"
            )
        if self.stop_when is not None and str(stop_rule(self.stop_when)) != self.stop_when:
            raise ProtocolError(f"{self.stop_when!r}: is written {stop_rule(self.stop_when)}")
        if self.text == "conversations" and stride != length:
            raise ProtocolError(
                f"stride {stride}: windows of conversations are cut by --long, and have none"
            )
        if self.text == "pages":
            self._check_pages(length)
        if self.scored == "new" and stride > length:
            raise ProtocolError(
                f"stride {stride} exceeds the context length {length}: protocol {self.name} "
                "scores each token once and would skip some"
            )
        most = None if positions is None else max(positions, longest or 0)
        # Of conversations no window need be as long: whoever plans them asks.
        if most is not None and length > most and self.text != "conversations":
            error = ProtocolError(
                f"context length {length} exceeds the model's {most} positions: "
                f"give --context-length {most} or less"
            )
            flags = {"--context-length": str(most)}
            if self.stride is not None and stride > most:
                # It would leave gaps between windows.
                flags["--stride"] = str(most)
            error.instead = flags
            raise error
        return replace(self, context_length=length, stride=stride)

    def _check_pages(self, length: int) -> None:
        """Raises ProtocolError for changes that pages have no place for."""
        usual = replace(PRESETS["lm-eval"], stride=length)
        for name in ("stride", "bos", "scored", "max_windows", "stop_when"):
            value = getattr(self, name)
            if value not in (None, getattr(usual, name)):
                raise ProtocolError(
                    f"protocol {self.name}: windows of whole pages have no {name.replace('_', '-')} of "
                    f"{value}: the context length and the vocabulary can be changed, and --num-samples "
                    "takes the first pages"
                )

    @property
    def is_of_requests(self) -> bool:
        """Tells whether continuations of contexts are scored, by log-likelihoods:
        `text.task_requests`."""
        return self.text in ("pages", "requests")

    def whole(self) -> "Protocol":
        """This protocol without a rule to stop by: all windows, in the order of the text."""
        return replace(self, stop_when=None, seed=None)

    def to_json(self) -> dict[str, Any]:
        """Every field, but those that came later where this protocol has none."""
        return {k: v for k, v in asdict(self).items() if k not in _LATER or v is not None}

    @property
    def sha256(self) -> str:
        """The sha256 of every field but the name: two names for one procedure hash alike."""
        value = {k: v for k, v in self.to_json().items() if k != "name"}
        return json_digest(value)


def _presets() -> dict[str, Protocol]:
    score_mode = Protocol("score-mode", stride=512, tail="drop-exact", short_text="one-window")
    exl3 = Protocol("exl3", bos="never", tail="drop-exact", max_windows=100, vocabulary="tokenizer")
    strided = Protocol("strided", context_length=None, stride=512, scored="new", tail="keep")
    return {
        p.name: p
        for p in (
            score_mode,
            replace(score_mode, name="score-mode-nonblank", text="nonblank-rows"),
            exl3,
            replace(exl3, name="exl3-s512", stride=512),
            replace(
                exl3,
                name="exl3-compare-q",
                stride=512,
                bos="auto",
                bos_at="stream",
                vocabulary="head",
            ),
            replace(
                exl3,
                name="exl3-qbench",
                text="nonblank-rows",
                max_windows=10,
                all_windows_required=True,
            ),
            Protocol("gptq"),
            Protocol(
                "llama.cpp",
                text="raw-file",
                bos_at="windows",
                context_length=512,
                scored="second-half",
                min_contexts=2,
                vocabulary="head",
            ),
            Protocol("disjoint", bos_at="stream", tail="keep", short_text="one-window"),
            replace(strided, short_text="one-window"),
            replace(strided, name="hf-strided", short_text="one-window", average="hf-guide"),
            Protocol(
                "lm-eval",
                text="pages",
                bos="never",
                context_length=None,
                scored="continuation",
                tail="keep",
                short_text="one-window",
            ),
            Protocol(
                "chat",
                text="conversations",
                bos="never",
                context_length=None,
                scored="assistant",
                tail="keep",
                short_text="one-window",
                long="truncate",
            ),
        )
    }


PRESETS = _presets()


def preset(name: str) -> Protocol:
    """The preset called `name` (underscores count as hyphens). Raises ProtocolError."""
    try:
        return PRESETS[name.replace("_", "-")]
    except KeyError:
        raise ProtocolError(f"unknown protocol {name!r}: one of {', '.join(PRESETS)}") from None

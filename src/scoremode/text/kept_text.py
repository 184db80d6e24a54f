"""A text that is known by the token ids that a reference keeps; its own characters may be gone.

Nothing is tokenized then: the windows are cut from the kept ids. That is right for a model only if its
own tokenizer would have made the same ids, so this is proven. The same tokenizer (by its sha256) would.
Of another file, as quantizing tools write them anew, the ids are spelled out: where they give the very
text whose sha256 the reference has, it is tokenized again, and the ids must be the same. Anything else
is refused by the name of what differs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Any

from scoremode.errors import CorpusError, ReferenceUnusable, TokenizerError
from scoremode.text.corpus import Corpus
from scoremode.text.plan import Plan
from scoremode.text.protocol import Protocol, TextRule
from scoremode.text.token_class import token_table
from scoremode.text.tokenizer import Tokenizer, tokenize

__all__ = ["KeptText", "kept_text"]


@dataclass(frozen=True)
class KeptText(Corpus):
    """The text of the reference `where`: `plan` as it keeps it, `record` as it describes it."""

    where: str = ""
    plan: Plan = field(kw_only=True)
    record: Mapping[str, Any] = field(kw_only=True, repr=False)

    @property
    def text_sha256(self) -> str:
        """The sha256 of what the protocol's rule made of the text."""
        return self.record["corpus"]["text"]["sha256"]

    @property
    def text_bytes(self) -> int:
        return self.record["corpus"]["text"]["bytes"]

    def text(self, rule: TextRule) -> str:
        raise CorpusError(f"{self.where}: keeps the token ids of its text, not the text")

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in self.record["corpus"].items() if key != "text"}

    def planned(self, protocol: Protocol, tokenizer: Tokenizer) -> Plan:
        """The kept plan, or with a limit its first windows, for a run under `protocol` of a model with
        `tokenizer`. Raises ReferenceUnusable where either would have made another one."""
        # Of a run that a rule may stop, the windows that it draws are those that are kept.
        whole = protocol.whole()
        plan = self.plan.begun(whole)
        for each in fields(protocol):
            ours, theirs = getattr(whole, each.name), getattr(plan.protocol, each.name)
            if each.name != "name" and ours != theirs:
                raise ReferenceUnusable(
                    f"{self.where}: is of another plan: its protocol's {each.name} is {theirs}, this "
                    f"run's {ours}"
                )
        if tokenizer.sha256 != self.record["tokenizer"]["sha256"]:
            self._prove(tokenizer)
        return plan if protocol.seed is None else plan.drawn(protocol)

    def _prove(self, tokenizer: Tokenizer) -> None:
        """Raises ReferenceUnusable unless another tokenizer than its own makes the same ids."""
        differing = self._difference(tokenizer)
        if self.plan.conversation is not None:
            raise ReferenceUnusable(
                f"{self.where}: was tokenized by another tokenizer than {tokenizer.source}: its "
                f"{differing}; --tokenizer BASE takes its own, and --conversations with its text "
                "compares the token ids themselves"
            )
        text = self.spelled(tokenizer)
        if text is None:
            raise ReferenceUnusable(
                f"{self.where}: was tokenized by another tokenizer than {tokenizer.source}: its "
                f"{differing}; --tokenizer BASE takes its own, and -f, --dataset-file or --dataset "
                "with its text compares the token ids themselves"
            )
        again = tokenize(text, tokenizer, self.plan.protocol)
        if again.sha256 != self.plan.sha256:
            raise ReferenceUnusable(
                f"{self.where}: {tokenizer.source} makes other token ids of its text "
                f"({len(again.tokens):,}, not {len(self.plan.tokens):,}): its tokenizer's {differing}"
            )

    def spelled(self, tokenizer: Tokenizer) -> str | None:
        """The text that the kept ids spell, if it is the one that was tokenized; None if not, and of
        conversations, which are many texts."""
        if self.plan.conversation is not None:
            return None
        try:
            pieces = token_table(tokenizer).pieces
        except TokenizerError:  # nobody knows what its tokens stand for
            return None
        ids = self.plan.tokens.tolist()
        behind = len(self.record["tokenizer"]["adds"]["behind"])
        # In front a BOS, or what its tokenizer puts there, or neither, as the protocol says.
        for front in sorted({0, 1, len(self.record["tokenizer"]["adds"]["front"])}):
            for end in sorted({len(ids), len(ids) - behind}):
                spelled = [pieces[i] if i < len(pieces) else None for i in ids[front:end]]
                data = b"".join(piece for piece in spelled if piece is not None)
                # SentencePiece's kind spells a space in front of a text.
                for text in (data, data.removeprefix(b" ")):
                    if sha256(text).hexdigest() == self.text_sha256:
                        return text.decode()
        return None

    def _difference(self, tokenizer: Tokenizer) -> str:
        ours, theirs = tokenizer.to_json(), self.record["tokenizer"]
        for name in ("size", "bos", "adds"):
            if ours[name] != theirs.get(name):
                return f"{name} is {theirs.get(name)}, not {ours[name]}"
        return f"sha256 is {theirs['sha256'][:12]}…, not {ours['sha256'][:12]}…"


def kept_text(where: str, record: Mapping[str, Any], plan: Plan) -> KeptText:
    """The text of the reference `where`, from its record and its plan. Raises ReferenceUnusable."""
    corpus = record["corpus"]
    for name, value in (
        ("corpus.source", corpus.get("source")),
        ("corpus.source_sha256", corpus.get("source_sha256")),
        ("tokenizer.adds", record["tokenizer"].get("adds")),
    ):
        if value is None:
            raise ReferenceUnusable(f"{where}: its record has no {name}")
    return KeptText(
        name=corpus["name"],
        rows=(),
        form="rows",
        source=corpus["source"],
        source_sha256=corpus["source_sha256"],
        row_limit=corpus.get("row_limit"),
        row_seed=corpus.get("row_seed"),
        where=where,
        plan=plan,
        record=record,
    )

"""A record of `scoremode generate`, as text."""

from collections.abc import Iterable, Mapping
from typing import Any

from scoremode.report.forms.document import Document, Facts, Table, data
from scoremode.report.layout import printable

__all__ = ["generation_document"]


def generation_document(record: Mapping[str, Any]) -> Document:
    """What was generated, by what, and how the replies ended."""
    counts, sampling = record["counts"], record["sampling"]
    row = {"file": record["output"]["name"], "base": record["base"]["source"], **counts, **sampling}
    table = Table(tuple(map(data, row)), (tuple(row.values()),))
    return Document((Facts(tuple(_facts(record))),), table)


def _facts(record: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    counts, prompts, output = record["counts"], record["prompts"], record["output"]
    yield "file", f"{printable(output['name'])}, sha256 {output['sha256'][:12]}…"
    yield "base", printable(record["base"]["source"])
    dropped = prompts["dropped_replies"]
    own = f", of which {dropped:,} had a reply that was left out" if dropped else ""
    yield "prompts", f"{prompts['prompts']:,} of {printable(prompts['name'])}{own}"
    yield "sampled", _sampled(record["sampling"])
    yield "by", _engine(record)
    yield "replies", f"{counts['replies']:,}, {counts['tokens']:,} tokens"
    yield "", f"{counts['ended']:,} ended by the model, {counts['cut']:,} cut at the limit"
    if counts["respelled"]:
        yield "", f"{counts['respelled']:,} with generated_ids: the tokenizer's would be others"
    if counts["left_out"]:
        yield "left out", f"{counts['left_out']:,}, which don't read back as the tokens generated"
    score = " --score completion" if prompts["with_history"] else ""
    yield (
        "score it",
        f"scoremode kld QUANT --reference BASE --conversations {output['name']}{score}",
    )
    if score:
        yield "", f"{prompts['with_history']:,} prompts have turns that the base did not say"


def _sampled(sampling: Mapping[str, Any]) -> str:
    if sampling["temperature"] == 0:
        return f"the likeliest token, at most {sampling['max_new_tokens']:,}"
    words = [f"temperature {sampling['temperature']:g}"]
    if sampling["top_k"]:
        words.append(f"top-k {sampling['top_k']}")
    if sampling["top_p"] < 1:
        words.append(f"top-p {sampling['top_p']:g}")
    words.append(f"at most {sampling['max_new_tokens']:,} tokens")
    if sampling["samples"] > 1:
        words.append(f"{sampling['samples']} times each")
    return ", ".join([*words, f"seed {sampling['seed']}"])


def _engine(record: Mapping[str, Any]) -> str:
    engine, versions = record["engine"], record["versions"]
    if engine["engine"] == "vllm":
        return f"vLLM {engine['vllm']} in {engine['dtype']}"
    where = printable(engine["device"]["name"])
    return f"transformers {versions['transformers']} in {engine['dtype']} on {where}"

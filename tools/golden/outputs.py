"""Outputs that people and programs read: helps, tables, pages, cards, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from families import DISJOINT, FIXED, FLOAT32, SMALL, VARIANTS, variant
from measurement import Measurement

COMMANDS = ("ppl", "kld", "attribute", "tasks", "merge", "sweep", "reference", "generate", "show",
            "compare", "report", "status", "check", "card", "plan", "inspect", "verify",
            "demo")  # fmt: skip
FORMS = ("table", "markdown", "csv", "json")
RANKED = tuple(f"run:{name}" for name in ("kld/stored", "kld/stored-W2A16-g32", "kld/full-stored"))
PLAIN = tuple(f"run:float32/{name}" for name in ("model", "W8A16", "W3A16-g32"))
GROUPED = ("run:text/groups",)
# Runs that have each something to show that the others have not.
SHOWN = ("kld/full-stored", "kld/noise-live", "chat/kld", "text/groups", "text/stop-kld",
         "text/calibration", "float32/W4A16-g32", "protocol/lm-eval-kld", "cache/int8",
         "mixture/both", "shard/kld-merged", "reference/stored", "gguf/kld")  # fmt: skip
WITHOUT_BASE = ("text/calibration", "float32/W4A16-g32", "reference/stored")
INSPECTED = {
    "model": "model",
    "W4A16-g32": variant("W4A16-g32"),
    "gguf": "random/gguf/llama-Q8_0.gguf",
    "nvfp4": "random/foreign/modelopt-NVFP4",
    "experts": "random/foreign/mxfp4",
    "presets": "random/presets",
}
# Command lines that end in a message.
REFUSED: dict[str, tuple[str, ...]] = {
    "no-model": ("ppl", "no-such-folder", *SMALL),
    "no-command": ("pp", "model"),
    "no-flag": ("ppl", "model", *SMALL, "--context-lenght", "64"),
    "no-protocol": ("ppl", "model", *SMALL, "--protocol", "disjont"),
    "no-text": ("ppl", "model", "-f", "no-such.txt"),
    "no-number": ("ppl", "model", *SMALL, "-c", "many"),
    "no-memory": ("ppl", "model", *SMALL, *DISJOINT, "--max-memory", "1KiB", "--device", "cpu"),
    "no-reference": ("kld", "model", *SMALL),
    "no-rule": ("ppl", "model", *SMALL, "--stop-when", "ppl 3"),
    "no-cache": ("ppl", "model", *SMALL, "--kv-cache", "int3"),
    "no-shard": ("ppl", "model", *SMALL, "--shard", "4/3"),
    "no-run": ("show", "model"),
    "no-template": ("ppl", "model", "--conversations", "chats.jsonl"),
    "other-engine": ("ppl", "model", *SMALL, "-tp", "2"),
    "two-texts": ("ppl", "model", *SMALL, "--text", "a"),
    "no-pages": ("ppl", "model", *SMALL, "--protocol", "lm-eval", "--stride", "3"),
    "other-plans": ("compare", "run:kld/stored", "run:kld/live"),
    "gate": ("show", "run:kld/stored", "--max-kld", "1e-6", "--quiet"),
}


def outputs() -> Iterator[Measurement]:
    for name in COMMANDS:
        yield Measurement(f"help/{name}", (name, "--help"))
        yield Measurement(f"help/{name}-all", (name, "--help", "all"))
    yield Measurement("help/scoremode", ("--help",))
    yield Measurement("help/version", ("--version",))
    yield Measurement("help/presets", ("ppl", "--list-presets"))
    for form in FORMS:
        yield printed(f"compare/kld-{form}", "compare", *RANKED, "--format", form)
        yield printed(f"compare/ppl-{form}", "compare", *PLAIN, "--format", form)
        yield printed(f"compare/groups-{form}", "compare", *GROUPED, "--groups", "--format", form)
        yield printed(f"plan/{form}", "plan", "model", *SMALL, *DISJOINT, "--format", form)
        yield printed(f"inspect/form-{form}", "inspect", variant("W4A16-g32"), "--format", form,
                      needs=("demo",))  # fmt: skip
        yield printed(f"status/{form}", "status", "run:kld/stored", "run:shard/ppl-1", "--format",
                      form)  # fmt: skip
        yield printed(f"show/groups-{form}", "show", "run:chat/kld", "--groups", "--format", form)
        yield printed(f"check/{form}", "check", "run:kld/live", "--format", form)
        yield printed(f"verify/{form}", "verify", variant("W4A16-g32"), *SMALL, *DISJOINT,
                      "--windows", "4", "--device", "cpu", "--format", form,
                      needs=("demo",))  # fmt: skip
    for name in SHOWN:
        worst = () if name in WITHOUT_BASE else ("--worst", "5")
        yield printed(f"show/{name}", "show", f"run:{name}", "-v", *worst)
        for form in FORMS[1:]:
            yield printed(f"show/{name}-{form}", "show", f"run:{name}", "--format", form)
    for name, model in INSPECTED.items():
        needs = ("demo",) if model.startswith("demo/") else ()
        yield printed(f"inspect/{name}", "inspect", model, "--device", "cpu", needs=needs)
        yield printed(f"inspect/{name}-json", "inspect", model, "--device", "cpu", "--json",
                      needs=needs)  # fmt: skip
    yield printed("plan/chat", "plan", "model", "--conversations", "chats.jsonl", "--chat-template",
                  "chatml.jinja")  # fmt: skip
    yield printed("plan/pages", "plan", "model", "--dataset-file", "pages.jsonl", "--text-field",
                  "page", "--protocol", "lm-eval")  # fmt: skip
    yield printed("card/kld", "card", *RANKED)
    yield printed("card/ppl", "card", *PLAIN)
    yield printed("card/chat", "card", "run:chat/kld", "run:text/groups")
    for name, runs in {"kld": RANKED, "ppl": PLAIN, "groups": (*GROUPED, "run:chat/kld")}.items():
        page = f"{name}.html"
        yield printed(f"report/{name}", "report", *runs, "-o", page, exports=(page,))
    yield printed("report/attribution", "report", "run:attribution/layer", "-o", "a.html",
                  exports=("a.html",))  # fmt: skip
    yield printed("check/again", "check", "run:kld/live", "--against", variant("W4A16-g32"), "--seed",
                  "1", "--share", "0.3", "-v")  # fmt: skip
    models = [variant(name) for name in VARIANTS[:2]]
    yield printed("sweep/dry-run", "kld", *models, "--reference", "model", *SMALL, *DISJOINT, *FLOAT32,
                  *FIXED, "--dry-run", "-o", "dry", needs=("demo",))  # fmt: skip
    yield printed("generate", "generate", "model", "--prompts", "prompts.txt", "--chat-template",
                  "plain.jinja", "--max-new-tokens", "12", "--samples-per-prompt", "2", "--device",
                  "cpu", "-o", "made.jsonl",
                  exports=("made.jsonl", "made.jsonl.json"))  # fmt: skip
    for name, words in REFUSED.items():
        yield printed(f"refused/{name}", *words)


def printed(name: str, *words: str, **more: Any) -> Measurement:
    return Measurement(f"output/{name}" if not name.startswith("help/") else name, words, **more)

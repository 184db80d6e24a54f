"""Campaign `programs`: chat templates, tokenizers and sweeps' files that a stranger made to do harm.

Each turn makes one of each, and the command that reads it has to succeed, or to refuse in one line,
within a bound of memory; a loop has to end by Ctrl-C. What is known to remain is what Rust says itself:
a panic's words before our line, and an abort where an allocation fails.
"""

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from torture.command import Ended, Failure, Failures, check_ending, run
from torture.world import World

__all__ = ["ATTEMPTS", "case"]

_MOST_BYTES = 4 << 30
_BOUNDED = (
    f"import resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({_MOST_BYTES}, {_MOST_BYTES})); "
    "from scoremode.__main__ import program; sys.exit(program())"
)
_PANIC = re.compile(r"^\n?thread '.*panicked at .*\n(?:(?!scoremode: ).*\n)*", re.MULTILINE)
_ABORT = re.compile(r"^memory allocation of \d+ bytes failed\n", re.MULTILINE)

_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_PIECES = (
    "{{ 10 ** (10 ** 8) }}", "{{ 2 ** 65535 }}", "{{ 1.5 ** 9999 }}", "{{ 'a' * 10 ** 10 }}",
    "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s OP n.s %}{% endfor %}",
    "{% set n = namespace(a=3) %}{% for i in range(60) %}{% set n.a = n.a * n.a %}{% endfor %}",
    "{% set n = namespace(l=[0]) %}{% for i in range(60) %}{% set n.l = n.l + n.l %}{% endfor %}",
    "{{ messages | random }}", "{{ lipsum() }}", "{% break %}", "{% continue %}", "{{ range }}",
    "{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "{{ messages | map('upper') }}",
    "{{ 'a' | center(10 ** 10) }}", "{{ '%9999999999d' | format(1) }}", "{{ 'a' | indent(10 ** 10) }}",
    "{{ '{:>9999999999}'.format(1) }}", "{{ messages | batch(10 ** 10, 'x') | list }}",
    "{{ 'a'.ljust(10 ** 10) }}", "{{ ('a,' * 9999).split(',') | join('b' * 9999) }}",
    "{{ ''.__class__ }}", "{{ messages[0].keys() - [] }}", "{{ strftime_now('%s') }}",
    "{{ strftime_now('%Y' * 99) }}", "{{ 1 // 0 }}", "{{ none.x.y }}", "{{ raise_exception(1) }}",
    "{{ ('9' * 9999) | int }}", "{{ messages | tojson(indent=10 ** 7) }}", "{{ loop }}", "{{ self }}",
    "{% generation %}x{% endgeneration %}", "{% generation %}", "{% for i in [1] %}" * 30,
    "{{ " + "(" * 900 + "1" + ")" * 900 + " }}", "{% include 'x' %}", "{% set messages = 1 %}",
)  # fmt: skip
_LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

_PARTS: dict[str, Any] = {
    "model.dropout": 0.3,
    "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 40}] * 3},
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated",
                      "invert": False},
    "decoder": None,
    "post_processor": {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}},
    "added_tokens": [{"id": 1 << 31, "content": "e", "single_word": False, "lstrip": True,
                      "rstrip": True, "normalized": False, "special": True}],
}  # fmt: skip

_LINES = (
    'models = "MODEL"', 'base = "MODEL"', 'models = ["MODEL", "no/such", "*"]', "models = []",
    'texts = "text.txt"', "texts = [1]", 'texts = [{text = "a b c"}, {file = "/dev/zero"}]',
    "[flags]", "trust-remote-code = true", 'engine-arg = ["worker_cls=x.y"]', 'device = "cpu"',
    'output = "/tmp/x"', 'output = "../x"', 'output = "out"', "output = 3", "limit = 1_000_000",
    "limit = 0x" + "f" * 9999, "seed = -1", "device = 2025-01-01", "a" + ".a" * 20_000 + " = 1",
    "x = {a" + ".a" * 20_000 + " = 1}", "x = " + "[" * 5000, '"a\\u0000b" = 1', 'device = "a\\u0000"',
    "[[protocols]]", 'protocol = "disjoint"', 'protocol = "none"', "context-length = 64",
    "context-length = nan", "[[texts]]",
    'conversations = "chats.jsonl"', "chat-template-kwargs = {a = 1}",
    'chat-template = "t.jinja"', "flags.flags.flags = 1",
)  # fmt: skip


def case(random: Random, world: World, folder: Path) -> str:
    """One of each; returns what they came to. Raises Failures."""
    told, failures = [], []
    for make in _KINDS:
        place = folder / make.__name__.strip("_")
        place.mkdir()
        try:
            told.append(make(random, world, place))
        except Failure as failure:
            failures.append(f"{place.name}: {failure}")
    if failures:
        raise Failures(failures)
    return "; ".join(told)


def _template(random: Random, world: World, folder: Path) -> str:
    pieces = random.sample(_PIECES, random.choice([0, 1, 1, 2]))
    text = _CHATML
    for piece in pieces:
        at = random.choice([0, len(text), text.index("{{")])
        text = text[:at] + piece.replace("OP", random.choice("+~")) + text[at:]
    if not pieces or random.random() < 0.2:
        text = _mutated(random, text)
    loops = random.random() < 0.2
    (folder / "t.jinja").write_text(_LOOP + text if loops else text, encoding="utf-8")
    said = [{"role": "user", "content": "Hi e"}, {"role": "assistant", "content": "Yes."}]
    (folder / "chats.jsonl").write_text(json.dumps({"messages": said}) + "\n")
    words = ["plan", str(world.folder / "model"), "--conversations", "chats.jsonl"]
    words += ["--chat-template", "t.jinja", "-c", "512"]
    # A template that is none, or fails before its loop, is refused all the same.
    return _ended(words, folder, _interrupt, (1, 2, 130)) if loops else _ended(words, folder)


def _interrupt(process: "subprocess.Popen[str]") -> None:
    """Sends Ctrl-C, and again where it isn't answered, until the process is gone."""
    while process.poll() is None:
        time.sleep(2)
        process.send_signal(signal.SIGINT)


def _tokenizer(random: Random, world: World, folder: Path) -> str:
    model = world.folder / "model"
    file = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    if random.random() < 0.5:
        name = random.choice(sorted(_PARTS))
        *parents, last = name.split(".")
        (file[parents[0]] if parents else file)[last] = _PARTS[name]
    else:
        inside, last = file, random.choice(sorted(file))
        while isinstance(inside[last], dict) and inside[last] and random.random() < 0.8:
            inside, last = inside[last], random.choice(sorted(inside[last]))
        inside[last] = random.choice([None, -1, 1e300, "", "\ufdd0", [], {}, True, [[]], 1 << 40])
    text = json.dumps(file)
    (folder / "tokenizer.json").write_text(
        _mutated(random, text) if random.random() < 0.2 else text, encoding="utf-8"
    )
    settings: Any = {"bos_token": "<s>", "add_bos_token": True}
    if random.random() < 0.3:
        settings[random.choice(sorted(settings))] = random.choice([1, [], "\ud800", {}, "no such"])
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    said = random.choice(["Here we see the tree", "a" * 60 + "!", "e" * 9, "\u0301\U0001f999"])
    (folder / "text.txt").write_text(said, encoding="utf-8")
    return _ended(["plan", "--tokenizer", str(folder), "-f", "text.txt", "-c", "8"], folder)


def _toml(random: Random, world: World, folder: Path) -> str:
    for name in ("text.txt", "model"):
        (folder / name).symlink_to(world.folder / name)
    lines = ['base = "MODEL"', 'models = "MODEL"', *random.sample(_LINES, random.randint(1, 6))]
    text = "\n".join(lines).replace("MODEL", "model")
    text = _mutated(random, text) if random.random() < 0.2 else text
    (folder / "s.toml").write_text(text, encoding="utf-8")
    before = sorted(folder.parent.rglob("*"))
    told = _ended(["sweep", "s.toml", "--dry-run"], folder)
    if sorted(folder.parent.rglob("*")) != before:
        raise Failure(f"a look ahead wrote something: {text!r}")
    return told


_KINDS: tuple[Callable[[Random, World, Path], str], ...] = (_template, _tokenizer, _toml)
ATTEMPTS = len(_KINDS)


def _mutated(random: Random, text: str) -> str:
    at, size = random.randrange(len(text)), random.randint(0, 5)
    return (
        text[:at] + random.choice(["", "{", "%}", '"', "\\", "\x00", "\u202e"]) + text[at + size :]
    )


def _ended(
    words: list[str],
    folder: Path,
    meanwhile: Callable[["subprocess.Popen[str]"], None] = lambda _: None,
    codes: tuple[int, ...] = (0, 1, 2),
) -> str:
    quiet = {"HF_HUB_OFFLINE": "1", "RUST_BACKTRACE": "0"}
    ended = run(words, folder, meanwhile=meanwhile, program=("-c", _BOUNDED), environment=quiet)
    if ended.code == 128 + signal.SIGABRT and _ABORT.search(ended.err):
        return "an allocation failed in Rust"
    check_ending(Ended(ended.code, ended.out, _PANIC.sub("", ended.err), ended.words), *codes)
    return f"exit {ended.code}: {ended.err.strip()[-200:]}"

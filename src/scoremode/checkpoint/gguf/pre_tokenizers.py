r"""llama.cpp's rules for cutting a text before its byte pairs are merged, by `tokenizer.ggml.pre`.

Facts of src/llama-vocab.cpp and src/unicode.cpp: names, regular expressions, one after the other, each
within the pieces of the one before, and what else a name means. The expressions are in Oniguruma's
syntax, which the tokenizers library has, and cut as llama.cpp does, its own ways included:

- its `\p{Lu}`, `\p{Ll}` and the like are all letters in `youtu` and `tiny_aya`, so a word isn't cut
  where its case changes; in `tekken` and `gpt-4o` only ASCII letters have a case; `kimi-k2` has no
  combining marks in words. The models' own tokenizers have.
- `afmoe` and `tiny_aya` put the first digits of a number to the text before it.
- U+3000 is white space and no punctuation in `deepseek-llm`.

Its table of characters is Unicode 15's, the library's a later one: the 5,185 letters, marks, numbers
and symbols that came later (U+0897 the lowest) are nothing to llama.cpp, and may be cut otherwise here.
"""

from typing import NamedTuple

_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{_SYMBOLS}|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}[\r\n]*|{_SPACES}"
_THREE_DIGITS = r"\p{N}{1,3}"
_ASCII_SYMBOL = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_MARKED_WORD = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK3 = rf"{_ASCII_SYMBOL}[A-Za-z]+|{_MARKED_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_CHINESE_JAPANESE = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
_DEEPSEEK_CJK = r"[\x{0800}-\x{9FA5}\x{AC00}-\x{D7FF}&&[^\s]]+"
_LINES = r"[^\n]+|\n+"
# Any text up to a number's first digits, then three at a time.
_DIGITS_BY_THREE = r"[^\p{N}]*+(?:\p{N}{1,3}(?=(?:\p{N}{3})*+(?!\p{N}))|\z)"
_BLOOM = r" ?[^(\s|.,!?…。\x{FF0C}、।۔،)]+"
_HAN = (
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}"
    r"\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
)
_AFMOE_CJK = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{8C48}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}"
    r"\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{0E40}-\x{0E7F}\x{0E80}-\x{0EFF}\x{1780}-\x{17FF}"
    r"\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
)
# Letters with a case, of an early Unicode.
_CASED = (
    r"A-Za-z\x{00B5}\x{00C0}-\x{00D6}\x{00D8}-\x{00F6}\x{00F8}-\x{01BA}\x{01BC}-\x{01BF}"
    r"\x{01C4}-\x{0293}\x{0295}-\x{02AF}\x{0370}-\x{0373}\x{0376}\x{0377}\x{037B}-\x{037D}"
    r"\x{037F}\x{0386}\x{0388}-\x{038A}\x{038C}\x{038E}-\x{03A1}\x{03A3}-\x{03F5}"
    r"\x{03F7}-\x{0481}\x{048A}-\x{052F}\x{0531}-\x{0556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}"
    r"\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}"
    r"\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}"
    r"\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}"
    r"\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}"
    r"\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}"
    r"\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}"
    r"\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}"
    r"\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}"
    r"\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}"
    r"\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}"
    r"\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}"
    r"\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)


class Split(NamedTuple):
    """The rule that a name in `tokenizer.ggml.pre` stands for.

    - `patterns`: each cuts the pieces of the one before; what lies between matches is a piece too.
    - `whole`: a piece that is a token is one, whatever the merges say.
    - `adds_bos`: whether BOS is put before a text where the file doesn't say.
    - `spelled`: tokens are spelled in characters, "▁" for a space, and not byte by byte.
    """

    patterns: tuple[str, ...]
    whole: bool = False
    adds_bos: bool = False
    spelled: bool = False


_BY_SPLIT: dict[Split, str] = {
    Split((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")): "default",
    Split((_LLAMA3,), whole=True, adds_bos=True): (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"
    ),
    Split((_LLAMA3,)): "dbrx smaug-bpe chatglm-bpe",
    Split((_LLAMA3,), whole=True): "glm4 glm5",
    Split(
        (
            r"[\r\n]",
            rf"\s?[{_CASED}]+",
            r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3001}-\x{3002}]+",
            r"(?<!\s)\s++\z",
            _DEEPSEEK_CJK,
            r"\p{N}+",
        )
    ): "deepseek-llm",
    Split((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")): "deepseek-coder",
    Split((_THREE_DIGITS, _CHINESE_JAPANESE, _DEEPSEEK3)): (
        "deepseek-v3 hunyuan-dense hy_v4 joyai-llm"
    ),
    Split(
        (
            _THREE_DIGITS,
            _CHINESE_JAPANESE,
            rf"{_ASCII_SYMBOL}[A-Za-z]+|{_MARKED_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
            r"\p{N}",
        )
    ): "spark2_5",
    Split(
        (
            r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}…“”‘’—\x{FF1A}\x{FF1B}\x{FF0C}"
            r"\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|" + _CHINESE_JAPANESE,
            rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{_CONTRACTION}?|\p{{N}}|"
            rf"{_SYMBOLS}[\r\n/]*|{_SPACES}",
        ),
        whole=True,
    ): "youtu",
    Split((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")): "falcon",
    Split((r"\p{N}", _GPT2)): (
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2"
    ),
    Split((_GPT2,)): (
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert "
        "jina-v1-en jina-v2-code roberta-bpe exaone4 mpt olmo jais trillion granite-docling"
    ),
    Split((_QWEN2,)): (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"
    ),
    Split(
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
            rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
        )
    ): "qwen35",
    Split((_BLOOM,)): "poro-chat bloom gpt3-finnish",
    Split((_BLOOM, r"\p{N}")): "viking",
    Split(
        (
            r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+|"
            r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*|"
            rf"\p{{N}}|{_SYMBOLS}[\r\n/]*|{_SPACES}",
        ),
        whole=True,
        adds_bos=True,
    ): "tekken",
    Split(
        (
            r"<sentinel:[0-9]+>",
            r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        adds_bos=True,
    ): "chameleon",
    Split(
        (
            rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^a-z]]*[\p{{L}}&&[^A-Z]]+{_CONTRACTION}?|"
            rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^a-z]]+[\p{{L}}&&[^A-Z]]*{_CONTRACTION}?|"
            rf"{_THREE_DIGITS}|{_SYMBOLS}[\r\n/]*|{_SPACES}",
        )
    ): "gpt-4o llama4 kanana2 talkie minimax-m2",
    Split(
        (
            rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}&&[^a-z]]*[\p{{L}}\p{{M}}&&[^A-Z]]+{_CONTRACTION}?|"
            rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}&&[^a-z]]+[\p{{L}}\p{{M}}&&[^A-Z]]*{_CONTRACTION}?|"
            rf"{_THREE_DIGITS}|{_SYMBOLS}[\r\n/]*|{_SPACES}",
        ),
        whole=True,
    ): "granite-embed-multi-97m",
    Split(
        (
            _DIGITS_BY_THREE,
            rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{_CONTRACTION}?|{_THREE_DIGITS}|"
            rf"{_SYMBOLS}[\r\n/]*|{_SPACES}",
        )
    ): "tiny_aya cohere2moe",
    Split(
        (
            rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+{_CONTRACTION}?|"
            rf"{_THREE_DIGITS}|{_SYMBOLS}[\r\n]*|{_SPACES}",
        )
    ): "kimi-k2",
    Split((r"\p{N}+", r"(?=([0-9]{3})+(?![0-9]))")): "superbpe",
    Split(
        (
            rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_SYMBOLS}[\r\n]*|"
            r"\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ): "bailingmoe bailingmoe2 llada-moe",
    Split((rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)): "seed-coder",
    Split((rf"{_WORD}|\p{{N}}|{_SYMBOLS}[\r\n]*|{_SPACES}",)): "ufakzeka",
    Split((_DIGITS_BY_THREE, _AFMOE_CJK, _DEEPSEEK3)): "afmoe",
    Split((_LINES, _QWEN2)): "laguna",
    Split(
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|"
            rf"{_SYMBOLS}[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ): "exaone-moe",
    Split(
        (_THREE_DIGITS, rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_SYMBOLS}[\r\n]*|{_SPACES}"), whole=True
    ): ("minicpm5"),
    Split(
        (
            rf"{_CONTRACTION}|{_WORD}|{_THREE_DIGITS}|{_SYMBOLS}[\r\n]*|\s*[\r\n]+|"
            + "".join(rf"\s{{{n}}}(?!\S)|" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
            + r"\s{1}",
        )
    ): "jais-2",
    Split((_LINES,), spelled=True, adds_bos=True): "gemma4 granite-embed-multi-311m",
    Split((_LINES,), spelled=True): "sarvam-moe",
}
SPLITS = {name: split for split, names in _BY_SPLIT.items() for name in names.split()}
# Names that llama.cpp has, and why they are not read.
UNREAD = {"whitespace": "drops white space, so that its tokens don't spell the text"}

"""WikiText's pages as lm-evaluation-harness's task `wikitext` has them (version 2, harness 0.4.13).

A page is an article: its heading and all lines up to the next heading, as the data set
EleutherAI/wikitext_document_level cuts WikiText's raw file. A model reads the page detokenized, without
the spaces that WikiText's tokenizer put in. Words and bytes are counted in the page as it is.
"""

import re

__all__ = ["detokenized", "page_words", "pages_of"]


def pages_of(raw: str) -> tuple[str, ...]:
    """The pages of a raw file of WikiText, such as wiki.test.raw, which has 62.

    A heading is a line ` = Title = `, where headings of sections, ` = = Title = = `, are none. Blank
    lines before the first heading are in no page.
    """
    pages: list[list[str]] = [[]]
    for line in raw.split("\n"):
        # What the data set looks at, so that `= = =` never begins a page.
        joined = line.replace("= = =", "===").replace("= =", "==").strip()
        if joined.startswith("= ") and joined.endswith(" ="):
            if not any(map(str.strip, pages[-1])):
                pages.pop()
            pages.append([])
        pages[-1].append(line)
    return tuple("\n".join(lines) for lines in pages)


def page_words(page: str) -> int:
    """The number of words of a page: of what stands between runs of whitespace, with the empty strings
    at both ends that the harness counts as well."""
    return len(re.split(r"\s+", page))


def _literally(*pairs: tuple[str, str]) -> list[tuple[str, str]]:
    return [(re.escape(old), new) for old, new in pairs]


# Patterns and what stands in their place, one after the other: each sees what the ones before it left.
_REPLACED = [
    (re.compile(pattern), new)
    for pattern, new in (
        *_literally(("s '", "s'")),
        # The slashes are the harness's own, and so hardly a text has it.
        (r"/' [0-9]/", "/'[0-9]/"),
        *_literally((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", ".")),
        *_literally(*((f" {mark} ", f"{mark} ") for mark in ":;.!?,")),
        (r"\(\s*([^)]*?)\s*\)", r"(\1)"),
        (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
        (r"\{\s*([^}]*?)\s*\}", r"{\1}"),
        (r'"\s*([^"]*?)\s*"', r'"\1"'),
        (r"'\s*([^']*?)\s*'", r"'\1'"),
        *_literally(("= = = =", "===="), ("= = =", "==="), ("= =", "==")),
        *_literally((" ° ", "°"), (" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "), (" 's", "'s")),
    )
]


def detokenized(page: str) -> str:
    """The text that the harness has a model read of a page."""
    for pattern, new in _REPLACED:
        page = pattern.sub(new, page)
    return page

"""From the docstrings of the house to what Sphinx reads.

Why: docstrings here are prose for people who read the code: `names` in single backquotes, a table of arguments as words
with two blanks behind them, an example as an indented block. Sphinx wants reStructuredText, in which a single * or a _
behind a word means something else. So each kind of block is recognised and written anew, and everything in it that
could mean something is escaped.

Rules: nothing is left out, and no docstring can break a page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# `node_id  of the node`, `nodes   "host:port"`, `certificate, key   files`; also `port: the only one`.
ARGUMENT = re.compile(r"^(\w+(?:, \w+)*)(?: {2,}|: )(\S.*)$")
COLUMN = re.compile(r"^\w+(?:, \w+)* {2,}\S")
ITEM = re.compile(r"^- ")
SPAN = re.compile(r"(`[^`\n]+`)")
NAME = re.compile(r"^[A-Za-z_][\w.]*(?:\(\))?$")
SPECIAL = re.compile(r"([\\*|<>`]|_(?=\W|$))")


def converted(lines: list[str]) -> list[str]:
    """A docstring as reStructuredText."""
    out: list[str] = []
    for block in _blocks(lines):
        out += [*_written(block, after=out), ""]
    return out


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Parts between empty lines; an indented part takes its empty lines along."""
    block: list[str] = []
    for number, line in enumerate(lines):
        if line.strip():
            block.append(line.rstrip())
            continue
        following = next((one for one in lines[number + 1 :] if one.strip()), "")
        if block and block[0].startswith("    ") and following.startswith("    "):
            block.append("")
        elif block:
            yield block
            block = []
    if block:
        yield block


def _written(block: list[str], after: list[str]) -> list[str]:
    if block[0].startswith("    "):
        return [".. code-block:: python", "", *"\n".join(block).rstrip().split("\n")]
    out: list[str] = []
    prose: list[str] = []
    rest = list(block)
    table = any(COLUMN.match(line) for line in block)
    while rest:
        line = rest.pop(0)
        argument = ARGUMENT.match(line) if table or _is_list(line, rest) else None
        item = ITEM.match(line)
        if not argument and not item:
            prose.append(line)
            continue
        text = [argument.group(2) if argument else line[2:]]
        while rest and rest[0].startswith("  "):
            text.append(rest.pop(0).strip())
        if prose:
            out += [*([""] if out and out[-1] else []), *_prose(prose), ""]
            prose = []
        said = " ".join(_prose(text))
        if out and out[-1] and out[-1].startswith("- ") is bool(argument):
            out.append("")
        out += [f"``{argument.group(1)}``", f"    {said}"] if argument else [f"- {said}"]
    if prose and out and out[-1]:
        out.append("")
    return out + (_prose(prose) if prose else [])


def _is_list(line: str, rest: list[str]) -> bool:
    """`port: the only one`, where the word is an argument's and not a sentence's."""
    word = re.match(r"^([a-z_]+): ", line)
    return bool(word) and word.group(1) not in ("so", "rules")


def _prose(lines: list[str]) -> list[str]:
    """Spans become code, or references where they look like names; the rest means nothing but itself."""
    text = "\n".join(lines)
    return "".join(_span(part[1:-1]) if SPAN.fullmatch(part) else _escaped(part)
                   for part in SPAN.split(text)).split("\n")


def _span(text: str) -> str:
    if NAME.match(text):
        return f":py:spanned:`{text}`"
    return f"``{text}``" if not text.startswith(" ") and not text.endswith((" ", "\\")) else _escaped(text)


def _escaped(text: str) -> str:
    return SPECIAL.sub(r"\\\1", text)

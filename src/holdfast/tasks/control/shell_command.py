"""Write a command line that a person can paste into a shell."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

_ESCAPES: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "'": r"\'", "\\": r"\\"}


def format_command(
    words: Sequence[str], arguments: Sequence[str], options: Sequence[str] = ()
) -> str:
    """Return a command line for bash: words, positional arguments, options, each quoted.

    If an argument starts with a dash, the options come first, and `--` before the arguments.
    """
    if any(argument.startswith("-") for argument in arguments):
        line = [*words, *options, "--", *arguments]
    else:
        line = [*words, *arguments, *options]
    return " ".join(map(quote_word, line))


def quote_word(word: str) -> str:
    r"""Return a word quoted for bash, without control or invisible characters.

    A word that has such characters is written as $'a\nb', which bash, zsh and ksh expand.
    """
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_escape, word))}'"


def _escape(character: str) -> str:
    if character == "\0":  # no argument can contain it: let the word match nothing
        return r"\\0"
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    # Bytes, because what \u means depends on the locale; octal, because it has at most 3 digits.
    # A lone surrogate is a byte of a file name that is not UTF-8.
    return "".join(f"\\{byte:03o}" for byte in character.encode(errors="surrogateescape"))

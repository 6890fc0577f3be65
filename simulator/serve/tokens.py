"""Approximate tokenisation of text, block hashes of tokens, and filler text of a given length.

No tokenizer of a model is loaded: a token is a word of up to eight letters (longer ones are cut), up to three digits,
or one or two punctuation marks: about four characters of English prose per token. Tokens are split from left to right,
so texts with a common start have common first tokens, as prefix caching requires.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from itertools import accumulate, islice

PIECES = re.compile(r" ?[^\W\d_]{1,8}|\d{1,3}| ?[^\w\s]{1,2}|_|\s+")
LINE = (
    " the of and to in is that it was for on are with as his they be at one have this from or had by but what some we "
    "can out other were all there when up use your how said an each she which do their time if will way about many "
    "then them write would like so these her long make thing see him two has look more day could go come did number "
    "sound no most people my over know water than call first who may down side been now find"
)
WORDS = tuple(f" {word}" for word in LINE.split())
"""Words that are one token each under this pattern and in nearly every tokenizer."""
ENDS = (0, *accumulate(map(len, WORDS)))
"""Length in characters of the first n words, by n."""

Token = str | int


def tokens_of(text: str, most: int | None = None) -> list[str]:
    """Split a text into tokens, at most the first ``most``; the joined tokens are the text."""
    return [piece.group() for piece in islice(PIECES.finditer(text), most)]


def chat_tokens(messages: Sequence[tuple[str, str]], most: int | None = None) -> list[Token]:
    """Tokens of a conversation: role, text and end of each message, and the role of the answer to come.

    The answer's filler text, sent back as a message, has the tokens that it had when it was generated.
    """
    tokens: list[Token] = []
    for role, text in messages:
        if most is not None and len(tokens) > most:
            break
        tokens += ["<|start|>", role, "<|text|>", *tokens_of(text, most), "<|end|>"]
    return [*tokens, "<|start|>", "assistant", "<|text|>"]


def filler_tokens(number: int, first: int, count: int) -> list[str]:
    """Tokens ``first`` to ``first + count`` of the ``number``-th answer."""
    return tokens_of(filler(number, first, count))


def filler(number: int, first: int, count: int) -> str:
    """Filler tokens as text."""
    start = (number + first) % len(WORDS)
    lines, words = divmod(start + count, len(WORDS))
    text = (LINE * lines + LINE[: ENDS[words]])[ENDS[start] :]
    return text if first else text.removeprefix(" ")


def block_hashes(tokens: Sequence[Token], block_tokens: int) -> list[int]:
    """Hash of each whole block and all earlier blocks; equal hashes mean equal prefixes."""
    hashes, before = [], b""
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        block = "\0".join(map(str, tokens[end - block_tokens : end]))
        before = hashlib.blake2b(before + block.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        hashes.append(int.from_bytes(before, "big") >> 1)
    return hashes

"""The lab model's language: a finite automaton whose speculative acceptance is known in advance.

The next token is a function of the last one alone. Words form closed cycles, one per acceptance
class; a flag on a word makes the draft head guess wrongly right after it, so that the number of
drafts accepted in a step follows from the distance to the next flagged word:

========  ==================  =======================================================
class     flagged words       accepted of a depth-d draft, once in phase
========  ==================  =======================================================
``five``  none                d: every draft
``four``  every fifth         min(d, 4): the fifth position never
``two``   every third         min(d, 2): only the first two positions
``zero``  all                 0
========  ==================  =======================================================

A rejected draft is replaced by the right token, and the next step starts behind it; hence every
step after the first flagged word starts in phase, whatever word the prompt ended with.
Every other token (a byte of plain text, a marker of the chat format) leads into ``five``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

VOCABULARY = 512
BYTES = 256

# Markers of the GLM chat format that the reasoning and tool parsers look up in the vocabulary.
MARKERS = (
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
)
FIRST_WORD = BYTES + len(MARKERS)


@dataclass(frozen=True, slots=True)
class AcceptanceClass:
    """A cycle of words with one pattern of draft acceptance.

    Parameters
    ----------
    name
        Stem of its words: ``/five000`` is the first word of ``five``.
    words
        Length of the cycle.
    period
        Every period-th word is flagged; 0 flags none. Divides ``words``.
    """

    name: str
    words: int
    period: int

    def accepted(self, depth: int) -> int:
        """Return how many of ``depth`` drafted tokens a step in phase accepts."""
        return depth if self.period == 0 else min(depth, self.period - 1)


# The plain tokens (276) lead into the 140 words of `five`: at most two into each.
CLASSES = (
    AcceptanceClass("five", 140, 0),
    AcceptanceClass("four", 40, 5),
    AcceptanceClass("two", 36, 3),
    AcceptanceClass("zero", 20, 1),
)


@dataclass(frozen=True, slots=True)
class Automaton:
    """The language as tables over token ids.

    Parameters
    ----------
    texts
        Text of each word, by word index (token id minus ``FIRST_WORD``).
    successor
        For each of the ``VOCABULARY`` token ids, the id that follows it.
    flagged
        Ids after which the draft head guesses the decoy.
    decoy
        Id of the wrong guess. It follows no flagged token.
    """

    texts: tuple[str, ...]
    successor: tuple[int, ...]
    flagged: frozenset[int]
    decoy: int

    def draft(self, token: int) -> int:
        """Return what the draft head guesses to follow a token."""
        return self.decoy if token in self.flagged else self.successor[token]

    def generate(self, token: int, count: int) -> list[int]:
        """Return the ``count`` ids that the model emits after a prompt ending in ``token``."""
        emitted: list[int] = []
        for _ in range(count):
            token = self.successor[token]
            emitted.append(token)
        return emitted

    def accept(self, token: int, depth: int) -> int:
        """Return how many drafts are accepted in a step.

        Parameters
        ----------
        token
            Last token already emitted.
        depth
            Drafted tokens; each is drafted from the one before it.
        """
        accepted, guess = 0, token
        for right in self.generate(token, depth):
            guess = self.draft(guess)
            if guess != right:
                break
            accepted += 1
        return accepted


def build_automaton() -> Automaton:
    """Lay the words of all classes out behind the bytes and markers.

    Returns
    -------
    Automaton
        Tables over exactly ``VOCABULARY`` tokens.
    """
    texts: list[str] = []
    successor = [0] * VOCABULARY
    flagged: set[int] = set()
    first = FIRST_WORD
    for entry in CLASSES:
        cycle = range(first, first + entry.words)
        texts += [f"/{entry.name}{index:03d}" for index in range(entry.words)]
        for here, there in pairwise((*cycle, first)):
            successor[here] = there
        if entry.period:
            flagged.update(cycle[entry.period - 1 :: entry.period])
        first += entry.words
    default = CLASSES[0]
    for plain in range(FIRST_WORD):
        successor[plain] = FIRST_WORD + plain % default.words
    # A word of `five` that follows only unflagged tokens.
    return Automaton(tuple(texts), tuple(successor), frozenset(flagged), FIRST_WORD + 1)

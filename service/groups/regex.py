"""Regular expressions over topic names, as RE2 understands them, and finding the topics that they match piece by piece.

Members of consumer groups send expressions and the broker runs them on its one loop: the engine must not backtrack, and
thousands of topics are not matched in one turn. Nothing is refused that RE2 knows, but what is too large for
`MAX_MEMORY_BYTES`. An expression matches whole names.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import re2

# Bounds the program that an expression becomes to some 10,000 instructions: three milliseconds at worst for a name of
# 249 characters, two to compile.
MAX_MEMORY_BYTES = 256 * 1024

# What is matched in one turn, in instructions x characters: half a millisecond where they must all be followed, which
# ordinary expressions never need.
MATCHED_AT_ONCE = 250_000


class InvalidRegex(ValueError):
    """The text is not an expression; the reason is its message."""


class TopicRegex:
    def __init__(self, pattern: str) -> None:
        options = re2.Options()
        options.log_errors = False
        options.never_capture = True
        options.max_mem = MAX_MEMORY_BYTES
        try:
            self._compiled = re2.compile(pattern, options)
        except re2.error as error:
            raise InvalidRegex(error.args[0].decode(errors="replace")) from None

    def matches(self, name: str) -> bool:
        return self._compiled.fullmatch(name) is not None

    def steps(self, name: str) -> int:
        """What matching `name` may cost."""
        size: int = self._compiled.programsize
        return size * (len(name) + 1)


class TopicMatches:
    """The topics that one expression matches. What was found out about a name is kept while the name is there."""

    def __init__(self, pattern: str) -> None:
        self._regex = TopicRegex(pattern)
        self.topics: frozenset[str] = frozenset()
        self.is_done = True
        self._looked_at: frozenset[str] = frozenset()
        self._ahead: list[str] = []  # names still to be matched, the next one last
        self._found: list[str] = []

    def look(self, names: frozenset[str], steps: int) -> int:
        """Match what is new among `names`, for about so many steps, and say how many are left. To be called with the
        same names until `is_done`.
        """
        if self.is_done:
            self._ahead = sorted(names - self._looked_at, reverse=True)
            steps -= 10 * len(names)
        while self._ahead and steps > 0:
            name = self._ahead.pop()
            steps -= self._regex.steps(name)
            if self._regex.matches(name):
                self._found.append(name)
        self.is_done = not self._ahead
        if self.is_done:
            self.topics = (self.topics & names).union(self._found)
            self._looked_at, self._found = names, []
        return steps


@dataclass(slots=True)
class RegexRound:
    """One look of a group over all topics: their names as it began, and the expressions still to be resolved."""

    names: frozenset[str]
    regexes: list[str]  # the next one last

    @classmethod
    def over(cls, names: Iterable[str], regexes: Iterable[str]) -> "RegexRound":
        return cls(frozenset(names), list(regexes)[::-1])

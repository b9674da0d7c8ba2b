"""Regular expressions over topic names, in RE2's syntax, and a search for the topics that they match, in several turns.

Members of consumer groups send expressions, and the broker runs them on its event loop. So the engine must not
backtrack, and thousands of topics are not matched in one turn. Every expression that RE2 accepts is accepted, unless it
needs more than `MAX_MEMORY_BYTES`. An expression must match the whole name.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import re2

# This limits a compiled expression to some 10,000 instructions. At worst it takes three milliseconds to match a name of
# 249 characters, and two to compile.
MAX_MEMORY_BYTES = 256 * 1024

# How much is matched in one turn, in instructions x characters. It takes half a millisecond if every instruction must
# be tried for every character, which ordinary expressions never need.
MATCHED_AT_ONCE = 250_000


class InvalidRegex(ValueError):
    """The text is no valid expression. The message has the reason."""


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
        """The cost of matching `name`, at worst."""
        size: int = self._compiled.programsize
        return size * (len(name) + 1)


class TopicMatches:
    """The topics that one expression matches. The result for a name is kept as long as there is a topic of that
    name.
    """

    def __init__(self, pattern: str) -> None:
        self._regex = TopicRegex(pattern)
        self.topics: frozenset[str] = frozenset()
        self.is_done = True
        self._looked_at: frozenset[str] = frozenset()
        self._ahead: list[str] = []  # names still to be matched, the next one last
        self._found: list[str] = []

    def look(self, names: frozenset[str], steps: int) -> int:
        """Match the new ones among `names`, for about `steps` steps. Returns how many steps are left. It must be called
        with the same names until `is_done`.
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
    """One round in which a group resolves its expressions: the names of all topics at its begin, and the expressions
    that are still to be resolved.
    """

    names: frozenset[str]
    regexes: list[str]  # the next one last

    @classmethod
    def over(cls, names: Iterable[str], regexes: Iterable[str]) -> "RegexRound":
        return cls(frozenset(names), list(regexes)[::-1])

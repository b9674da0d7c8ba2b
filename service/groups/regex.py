"""Regular expressions over topic names, in RE2's syntax, and a search for the topics that they match, in several turns.

Members of consumer groups send expressions, and the broker runs them on its event loop. So the engine must not
backtrack, thousands of topics are not matched in one turn, and an expression that would take long to compile or to
match is refused. An expression must match the whole name.

The names of topics are ASCII. So for them the engine works with Latin-1, in which a dot is one instruction and not ten.
All other characters of an expression match nothing.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import re2

# These limits bound the work, not the time: to compile an expression takes about a millisecond at most on a usual
# machine, and as long to match a name of 249 characters; up to 2.5 ms were seen on a slow one. RE2 has the last two
# limits only when it has read the whole expression, which may take seconds: it expands repetitions, and a Unicode class
# costs 0.1 ms, or 9 ms if case is ignored.
MAX_CHARACTERS = 1_000
MAX_PLAIN_CHARACTERS = 2_000  # of a list of names
MAX_REPEATED = 500  # the sum of all counts: 5 in `a{5}`, 5 in `a{2,5}`
MAX_UNICODE_CLASSES = 3
MAX_MEMORY_BYTES = 32 * 1024
MAX_INSTRUCTIONS = 800

# Names and the beginnings of names, with `|` between them. Of each alternative at most one place can go on, so a match
# costs what the alternatives are, not what the instructions are.
PLAIN = re.compile(r"(?:[\w.^$|-]|\\[.-])*", re.ASCII)
COUNTS = re.compile(r"\{(\d+)(?:,(\d*))?\}")
IGNORES_CASE = re.compile(r"\(\?[a-zA-Z]*i")
NOT_LATIN = re.compile("[^\x00-\xff]")

# What is done in one turn, in instructions x characters: no more than matching the longest name with the largest
# expression. So it takes no longer than that: about a millisecond on a usual machine.
STEPS_OF_A_CALL = 1_000  # a match costs as much besides
MATCHED_AT_ONCE = STEPS_OF_A_CALL + MAX_INSTRUCTIONS * 250
STEPS_OF_A_CHARACTER = 200  # when an expression is compiled
STEPS_OF_A_NAME = 10  # to find out whether it is new
STEPS_OF_A_MATCH = 100  # to record it, with all others of the expression


class InvalidRegex(ValueError):
    """The text is no valid expression, or may take too long. The message has the reason."""


class BoundedRegex:
    """An expression over names. `of_topics`: all names are ASCII."""

    def __init__(self, pattern: str, *, of_topics: bool = True) -> None:
        is_plain = PLAIN.fullmatch(pattern) is not None
        _refuse_what_takes_long(pattern, MAX_PLAIN_CHARACTERS if is_plain else MAX_CHARACTERS)
        options = re2.Options()
        options.log_errors = False
        options.never_capture = True
        options.max_mem = MAX_MEMORY_BYTES
        self._of_topics = of_topics
        said: str | bytes = pattern
        if of_topics:
            options.encoding = re2.Options.Encoding.LATIN1
            said = NOT_LATIN.sub("\xff", pattern).encode("latin-1")
        try:
            self._compiled = re2.compile(said, options)
        except re2.error as error:
            raise InvalidRegex(error.args[0].decode(errors="replace")) from None
        self._instructions: int = 1 + pattern.count("|") if is_plain else self._compiled.programsize
        if self._instructions > MAX_INSTRUCTIONS:
            raise InvalidRegex("pattern too large")

    def matches(self, name: str) -> bool:
        return self._compiled.fullmatch(name.encode() if self._of_topics else name) is not None

    def steps(self, name: str) -> int:
        """The cost of matching `name`, at worst."""
        return STEPS_OF_A_CALL + self._instructions * len(name)


def _refuse_what_takes_long(pattern: str, characters: int) -> None:
    if len(pattern) > characters:
        raise InvalidRegex(f"it has more than {characters} characters")
    counts = (max(int(least), int(most or 0)) for least, most in COUNTS.findall(pattern))
    if sum(counts) > MAX_REPEATED:
        raise InvalidRegex(f"its counts of repetitions are more than {MAX_REPEATED} together")
    classes = pattern.lower().count("\\p")
    if classes > MAX_UNICODE_CLASSES or (classes and IGNORES_CASE.search(pattern)):
        raise InvalidRegex(
            f"it has more than {MAX_UNICODE_CLASSES} Unicode classes, or one while case is ignored;"
            " names of topics are ASCII"
        )


class TopicMatches:
    """The topics that one expression matches. The result for a name is kept as long as there is a topic of that
    name.
    """

    def __init__(self, pattern: str) -> None:
        self.topics: frozenset[str] = frozenset()
        self._pattern = pattern
        self._regex: BoundedRegex | None = None  # None: not compiled yet
        self._looked_at: Mapping[str, None] = {}
        self._ahead: list[str] | None = None  # names still to be matched, the next one last; None: no look is under way
        self._found: list[str] = []

    def look(self, names: Mapping[str, None], steps: int) -> int | None:
        """Match the new ones among `names`. Returns how many steps are left. None: there were too few. Then it must be
        called again with the same names and `MATCHED_AT_ONCE` steps, which are enough for some of them.
        """
        if self._regex is None:
            steps -= STEPS_OF_A_CHARACTER * min(len(self._pattern), MAX_CHARACTERS)
            if steps < 0:
                return None
            try:
                self._regex = BoundedRegex(self._pattern)
            except InvalidRegex:
                return steps  # accepted by Kafka, or by a version with other limits: it matches nothing here
        if self._ahead is None:
            self._ahead = [name for name in names if name not in self._looked_at]
            steps -= STEPS_OF_A_NAME * len(names)
        while self._ahead:
            steps -= self._regex.steps(self._ahead[-1])
            if steps < 0:
                return None
            name = self._ahead.pop()
            if self._regex.matches(name):
                self._found.append(name)
        self.topics = self.topics.intersection(names).union(self._found)
        self._looked_at, self._ahead, self._found = names, None, []
        return steps


@dataclass(slots=True)
class RegexRound:
    """One round in which a group resolves its expressions: the names of all topics at its begin, and the expressions
    that are still to be resolved.
    """

    names: Mapping[str, None]
    regexes: list[str]  # the next one last

    @classmethod
    def over(cls, names: Iterable[str], regexes: Iterable[str]) -> "RegexRound":
        return cls(dict.fromkeys(names), list(regexes)[::-1])

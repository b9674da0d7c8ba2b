"""Regular expressions over topic names, matched in time linear in the name: the part of RE2 that topic names need.

Members of consumer groups send expressions and the broker runs them, so a backtracking engine (Python's `re`) would let
one member stop the broker with `(a+)+b`. Here an expression becomes a nondeterministic automaton, and a name is
matched by following all its paths at once.

Understood: literals, `.`, classes with ranges and `^`, `\\d \\w \\s` and their opposites, POSIX classes such as
`[[:alpha:]]`, groups (capturing or not, named, with the flag i), `|`, `* + ? {n} {n,} {n,m}` with or without `?`
behind, `^ $ \\A \\z \\b \\B`, `\\Q...\\E`. Refused, though RE2 knows them: Unicode classes (`\\p{...}`); topic names
are ASCII. Refused as in RE2: look-around, back references.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

# RE2's own limit on one repetition, and ours on the whole: a name is matched in (states x characters) steps.
MAX_REPEAT = 1_000
MAX_STATES = 10_000
MAX_DEPTH = 100

Test = Callable[[str], bool]


class InvalidRegex(ValueError):
    """The text is not an expression that this engine understands; the reason is its message."""


@dataclass(slots=True)
class _State:
    """It consumes a character that passes `test`, or is passed where `assertion` holds, or only leads on."""

    test: Test | None = None
    assertion: str = ""
    next: list[int] = field(default_factory=list)


class TopicRegex:
    """A compiled expression. It matches whole names."""

    def __init__(self, pattern: str) -> None:
        self._states: list[_State] = []
        parser = _Parser(_unquoted(pattern), self._states)
        start, ends = parser.parse()
        self._start = start
        self._accept = self._add_accept(ends)

    def matches(self, name: str) -> bool:
        current = self._closure([self._start], name, 0)
        for at, character in enumerate(name):
            reached = [
                following
                for number in current
                if (test := self._states[number].test) is not None and test(character)
                for following in self._states[number].next
            ]
            current = self._closure(reached, name, at + 1)
            if not current:
                return False
        return self._accept in current

    def _add_accept(self, ends: list[int]) -> int:
        self._states.append(_State())
        for end in ends:
            self._states[end].next.append(len(self._states) - 1)
        return len(self._states) - 1

    def _closure(self, numbers: list[int], name: str, at: int) -> dict[int, None]:
        """All states reached without consuming a character, in a stable order."""
        seen: dict[int, None] = {}
        waiting = numbers[::-1]
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen[number] = None
            state = self._states[number]
            if state.test is None and (not state.assertion or _holds(state.assertion, name, at)):
                waiting.extend(reversed(state.next))
        return seen


def _unquoted(pattern: str) -> str:
    """The pattern with every character of `\\Q...\\E` escaped by itself."""
    plain: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("\\Q", at):
            end = pattern.find("\\E", at)
            end = len(pattern) if end < 0 else end
            plain.extend(character if character.isalnum() else f"\\{character}" for character in pattern[at + 2 : end])
            at = end + 2
        else:
            size = 2 if pattern[at] == "\\" else 1
            plain.append(pattern[at : at + size])
            at += size
    return "".join(plain)


def _is_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")


def _is_digit(character: str) -> bool:
    return "0" <= character <= "9"


def _is_space(character: str) -> bool:
    return character in "\t\n\f\r "


def _holds(assertion: str, name: str, at: int) -> bool:
    if assertion == "^":
        return at == 0
    if assertion == "$":
        return at == len(name)
    before = at > 0 and _is_word(name[at - 1])
    after = at < len(name) and _is_word(name[at])
    return (before != after) == (assertion == "b")


def _not(test: Test) -> Test:
    return lambda character: not test(character)


ESCAPED_CLASSES: dict[str, Test] = {
    "d": _is_digit,
    "D": _not(_is_digit),
    "w": _is_word,
    "W": _not(_is_word),
    "s": _is_space,
    "S": _not(_is_space),
}
POSIX_CLASSES: dict[str, Test] = {
    "alnum": lambda c: c.isascii() and c.isalnum(),
    "alpha": lambda c: c.isascii() and c.isalpha(),
    "ascii": str.isascii,
    "blank": lambda c: c in " \t",
    "digit": _is_digit,
    "lower": lambda c: c.isascii() and c.islower(),
    "punct": lambda c: c.isascii() and c.isprintable() and not c.isalnum() and c != " ",
    "space": lambda c: c in "\t\n\v\f\r ",
    "upper": lambda c: c.isascii() and c.isupper(),
    "word": _is_word,
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
}
ESCAPED_CONTROLS = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
ASSERTIONS = {"A": "^", "z": "$", "b": "b", "B": "B"}

# A piece of the automaton: where it begins, and the states whose `next` must be led on.
_Piece = tuple[int, list[int]]


class _Parser:
    def __init__(self, pattern: str, states: list[_State]) -> None:
        self._pattern = pattern
        self._states = states
        self._at = 0
        self._depth = 0
        self._ignore_case = False

    def parse(self) -> _Piece:
        piece = self._alternatives()
        if self._at < len(self._pattern):
            raise InvalidRegex("unexpected )")
        return piece

    # Grammar: alternatives of sequences of repeated atoms
    # ---------------------------------------------------------------

    def _alternatives(self) -> _Piece:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidRegex("expression nests too deeply")
        pieces = [self._sequence()]
        while self._take("|"):
            pieces.append(self._sequence())
        self._depth -= 1
        if len(pieces) == 1:
            return pieces[0]
        fork = self._state(following=[start for start, _ in pieces])
        return fork, [end for _, ends in pieces for end in ends]

    def _sequence(self) -> _Piece:
        start = self._state()
        ends = [start]
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            piece_start, piece_ends = self._repeated()
            for end in ends:
                self._states[end].next.append(piece_start)
            ends = piece_ends
        return start, ends

    def _repeated(self) -> _Piece:
        first_state = len(self._states)
        piece = self._atom()
        bounds = self._bounds()
        if bounds is None:
            return piece
        self._take("?")  # whether a repetition is greedy makes no difference to whether a whole name matches
        if self._bounds() is not None:
            raise InvalidRegex("repetition of a repetition")
        template = self._states[first_state:]
        del self._states[first_state:]

        def copy() -> _Piece:
            shift = len(self._states) - first_state
            for state in template:
                self._state(state.test, state.assertion, [number + shift for number in state.next])
            return piece[0] + shift, [end + shift for end in piece[1]]

        return self._copies(copy, *bounds)

    def _copies(self, copy: Callable[[], _Piece], least: int, most: int | None) -> _Piece:
        start = again = self._state()
        ends = [start]
        for _ in range(least):
            again, copy_ends = copy()
            self._lead(ends, again)
            ends = copy_ends
        if most is None:
            loop = self._state()
            self._lead(ends, loop)
            if least == 0:
                again, copy_ends = copy()
                self._lead(copy_ends, loop)
            self._states[loop].next.append(again)
            return start, [loop]
        skipped: list[int] = []
        for _ in range(most - least):
            skipped.extend(ends)
            copy_start, copy_ends = copy()
            self._lead(ends, copy_start)
            ends = copy_ends
        return start, [*skipped, *ends]

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        return self._counted() if self._peek("{") else None

    def _counted(self) -> tuple[int, int | None] | None:
        end = self._pattern.find("}", self._at)
        least_text, comma, most_text = self._pattern[self._at + 1 : end].partition(",") if end > 0 else ("", "", "")
        if not least_text.isdecimal() or (most_text and not most_text.isdecimal()):
            return None  # as in RE2, a brace that counts nothing is a literal
        least = int(least_text)
        most = least if not comma else (int(most_text) if most_text else None)
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise InvalidRegex("invalid repetition count")
        self._at = end + 1
        return least, most

    def _atom(self) -> _Piece:
        character = self._pattern[self._at]
        self._at += 1
        match character:
            case "(":
                return self._group()
            case "[":
                return self._consume(self._class())
            case "\\":
                return self._escape()
            case ".":
                return self._consume(lambda c: c != "\n")
            case "^" | "$":
                return self._assert(character)
            case "*" | "+" | "?":
                raise InvalidRegex("nothing to repeat")
            case _:
                return self._literal(character)

    def _group(self) -> _Piece:
        ignore_case = self._ignore_case
        if self._take("?"):
            if self._take("P<") or (
                self._peek("<") and not self._peek("<=") and not self._peek("<!") and self._take("<")
            ):
                end = self._pattern.find(">", self._at)
                if end < 0 or not self._pattern[self._at : end].isidentifier():
                    raise InvalidRegex("invalid group name")
                self._at = end + 1
            elif self._flags():
                return self._empty()  # `(?i)`: from here on
        piece = self._alternatives()
        if not self._take(")"):
            raise InvalidRegex("missing closing )")
        self._ignore_case = ignore_case
        return piece

    def _flags(self) -> bool:
        """Read `i:` or `i)` behind `(?`; whether the flags stand alone."""
        on = True
        while self._at < len(self._pattern):
            flag = self._pattern[self._at]
            self._at += 1
            if flag in ":)":
                return flag == ")"
            if flag == "-" and on:
                on = False
            elif flag == "i":
                self._ignore_case = on
            elif flag not in "smU":  # those three make no difference to names
                break
        raise InvalidRegex("invalid or unsupported group syntax")

    def _escape(self) -> _Piece:
        if self._at >= len(self._pattern):
            raise InvalidRegex("trailing backslash")
        character = self._pattern[self._at]
        self._at += 1
        if character in ESCAPED_CLASSES:
            return self._consume(ESCAPED_CLASSES[character])
        if character in ASSERTIONS:
            return self._assert(ASSERTIONS[character])
        self._at -= 1
        return self._literal(self._escaped_character())

    def _escaped_character(self) -> str:
        character = self._pattern[self._at]
        self._at += 1
        if character in ESCAPED_CONTROLS:
            return ESCAPED_CONTROLS[character]
        if character == "x":
            return self._hexadecimal()
        if character.isalnum():
            raise InvalidRegex(f"invalid or unsupported escape \\{character}")
        return character

    def _hexadecimal(self) -> str:
        if self._take("{"):
            end = self._pattern.find("}", self._at)
            text, self._at = self._pattern[self._at : max(end, 0)], end + 1
        else:
            text, self._at = self._pattern[self._at : self._at + 2], self._at + 2
        try:
            return chr(int(text, 16))
        except (ValueError, OverflowError):
            raise InvalidRegex("invalid hexadecimal escape") from None

    def _class(self) -> Test:
        negated = self._take("^")
        tests: list[Test] = []
        first = True
        while first or not self._peek("]"):
            if self._at >= len(self._pattern):
                raise InvalidRegex("missing closing ]")
            first = False
            tests.append(self._class_item())
        self._at += 1

        def passes(character: str) -> bool:
            return any(test(character) for test in tests)

        test = self._either_case(passes)
        return _not(test) if negated else test

    def _class_item(self) -> Test:
        if self._take("[:"):
            end = self._pattern.find(":]", self._at)
            name = self._pattern[self._at : max(end, 0)]
            self._at = end + 2
            if (test := POSIX_CLASSES.get(name.removeprefix("^"))) is None:
                raise InvalidRegex("invalid character class")
            return _not(test) if name.startswith("^") else test
        low = self._class_character()
        if not isinstance(low, str):
            return low
        if not self._peek("-") or self._peek("-]"):
            return lambda character: character == low
        self._at += 1
        if self._at >= len(self._pattern):
            raise InvalidRegex("missing closing ]")
        high = self._class_character()
        if not isinstance(high, str) or high < low:
            raise InvalidRegex("invalid character class range")
        return lambda character: low <= character <= high

    def _class_character(self) -> str | Test:
        character = self._pattern[self._at]
        self._at += 1
        if character != "\\":
            return character
        if self._at >= len(self._pattern):
            raise InvalidRegex("trailing backslash")
        if self._pattern[self._at] in ESCAPED_CLASSES:
            self._at += 1
            return ESCAPED_CLASSES[self._pattern[self._at - 1]]
        return self._escaped_character()

    # Building
    # -----------------------------------------------------------------------------------------------------------

    def _state(self, test: Test | None = None, assertion: str = "", following: list[int] | None = None) -> int:
        if len(self._states) >= MAX_STATES:
            raise InvalidRegex("expression is too large")
        self._states.append(_State(test, assertion, following if following is not None else []))
        return len(self._states) - 1

    def _consume(self, test: Test) -> _Piece:
        number = self._state(test)
        return number, [number]

    def _literal(self, literal: str) -> _Piece:
        return self._consume(self._either_case(lambda character: character == literal))

    def _assert(self, assertion: str) -> _Piece:
        number = self._state(assertion=assertion)
        return number, [number]

    def _empty(self) -> _Piece:
        number = self._state()
        return number, [number]

    def _either_case(self, test: Test) -> Test:
        if not self._ignore_case:
            return test
        return lambda character: test(character) or test(character.swapcase())

    def _lead(self, ends: list[int], start: int) -> None:
        for end in ends:
            self._states[end].next.append(start)

    def _peek(self, text: str) -> bool:
        return self._pattern.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        if not self._peek(text):
            return False
        self._at += len(text)
        return True

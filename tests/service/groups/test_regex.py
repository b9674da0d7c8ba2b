"""Expressions over topic names mean what they mean in RE2, and no expression takes long."""

import re
import warnings

import pytest
from hypothesis import given
from hypothesis.strategies import lists, sampled_from, text

from service.groups.regex import MATCHED_AT_ONCE, InvalidRegex, TopicMatches, TopicRegex


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders", ["orders"], ["order", "orders2", "xorders"]),
        ("orders.*", ["orders", "orders-eu"], ["my-orders"]),
        ("a|bc", ["a", "bc"], ["abc", "b"]),
        ("(eu|us)-[a-z]+[0-9]{2,3}", ["eu-ab12", "us-c123"], ["eu-12", "us-c1", "us-c1234"]),
        ("[^a-c]x", ["dx", "-x"], ["ax", "x"]),
        ("a?b+c*", ["b", "abbc", "bcc"], ["ac", "aab"]),
        ("a{2}", ["aa"], ["a", "aaa"]),
        ("a{2,}", ["aa", "aaaa"], ["a"]),
        ("a{0}b", ["b"], ["ab"]),
        ("x{,2}", ["x{,2}"], ["x", "xx"]),
        (r"\w+\.\d+", ["ab_1.22"], ["ab122", "a.b"]),
        (r"\Qa.b\E+", ["a.b", "a.bbb"], ["axb"]),
        (r"^orders$", ["orders"], ["orders "]),
        (r"\Aab\z", ["ab"], ["abc"]),
        (r"a\b.*", ["a", "a-b"], ["ab"]),
        (r"a\B.", ["ab"], ["a-"]),
        ("(?i)Orders", ["orders", "ORDERS"], ["order"]),
        ("(?i:o)k", ["ok", "Ok"], ["oK"]),
        ("(?P<name>a)(?<other>b)(?:c)", ["abc"], ["ab"]),
        ("[[:alpha:]][[:^digit:]]", ["ab", "a-"], ["a1", "1a"]),
        (r"[\d.]+", ["1.2"], ["a"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[a-]", ["a", "-"], ["b"]),
        (r"\x61\x{62}", ["ab"], ["ax"]),
        ("a.*?b", ["ab", "axxb"], ["a"]),
        ("", [""], ["a"]),
        (r"\p{Greek}|\pL{2}", ["ab"], ["a", "1"]),
    ],
)
def test_names_match_as_in_re2(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = TopicRegex(pattern)
    assert [name for name in matching if not compiled.matches(name)] == []
    assert [name for name in others if compiled.matches(name)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "a)",
        "[",
        "[a",
        "[z-a]",
        "[[:nope:]]",
        "*",
        "a**",
        "a{2,1}",
        "a{1001}",
        "((a{1000}){1000}){1000}",
        "\\",
        r"(a)\1",
        "(?=a)",
        "(?<!a)",
        "(?z)",
        r"\x{110000}",
        r"\xzz",
        "[a\\",
        "[a-",
    ],
)
def test_what_is_no_expression_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegex):
        TopicRegex(pattern)


def test_an_expression_that_would_backtrack_for_ever_is_answered_at_once() -> None:
    """2^240 paths lead through this name in a backtracking engine; here every character costs one step."""
    assert not TopicRegex("(a*)*(a|a)*(a+)+b").matches("a" * 240)


LARGE = "(.?.?.?.?){240}z"


def test_an_expression_is_matched_in_turns_of_bounded_work() -> None:
    names = frozenset(f"orders.eu-west-1.customer-events.v{number:05d}.aggregated" for number in range(1_000))
    matches = TopicMatches(LARGE)
    turns = 1
    while matches.look(names, MATCHED_AT_ONCE) <= 0 or not matches.is_done:
        turns += 1
    assert turns >= len(names) * TopicRegex(LARGE).steps(max(names)) // MATCHED_AT_ONCE // 2
    assert matches.topics == frozenset()


def test_only_names_that_are_new_are_matched_again() -> None:
    matches = TopicMatches("a.*")
    matches.look(frozenset({"a", "ab", "b"}), MATCHED_AT_ONCE)
    assert matches.topics == {"a", "ab"}
    left = matches.look(frozenset({"ab", "b", "ac"}), MATCHED_AT_ONCE)
    assert matches.topics == {"ab", "ac"}
    assert left == MATCHED_AT_ONCE - 10 * 3 - TopicRegex("a.*").steps("ac")


@given(lists(sampled_from([*"ab|()*+?.^$[]-", "a{1,2}", r"\d", "(?:"]), max_size=10), text("ab-1", max_size=6))
def test_expressions_agree_with_pythons_where_both_understand_them(pieces: list[str], name: str) -> None:
    pattern = "".join(pieces)
    try:
        mine = TopicRegex(pattern)
    except InvalidRegex:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # `[[` means what it says
            theirs = re.compile(pattern)
    except re.error:
        return
    assert mine.matches(name) == (theirs.fullmatch(name) is not None)

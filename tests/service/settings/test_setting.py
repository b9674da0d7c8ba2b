"""How values are read."""

from service.settings.setting import split_list


def test_blanks_around_the_items_of_a_list_are_no_part_of_them() -> None:
    assert split_list(" a ,\tb,,c d ") == ("a", "b", "", "c d")
    assert split_list("  ") == ()


def test_blanks_within_an_item_are_passed_once() -> None:
    """Were they looked through from each of them, this would take minutes, in which a broker serves nobody."""
    item = f"a{' ' * 300_000}b"
    assert split_list(f"{item} , c") == (item, "c")

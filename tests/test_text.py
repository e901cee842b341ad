import pytest

from bisrqa.text import contains, normalise


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  The  Beatles\t(band) ", "beatles band"),
        ("U.S.", "us"),
        ("An apple a day", "apple day"),
        ("Theatre, Anna & Ana", "theatre anna ana"),
        ("m.0d05w3", "m0d05w3"),
        ("a.n", ""),  # punctuation goes first, and leaves an article
        ("", ""),
        (" \n", ""),
        ("?!", ""),
        ("The a AN", ""),
        ("ZÜRICH", "zürich"),
        ("北京。", "北京。"),
        ("الْقاهرة", "الْقاهرة"),
        ("São\u00a0Paulo\u3000", "são paulo"),
    ],
)
def test_by_hand(text, expected):
    assert normalise(text) == expected
    assert normalise(normalise(text)) == expected


def test_both_spellings_of_an_accent_are_equal():
    assert normalise("Beyonce\u0301") == normalise("Beyonc\u00e9")
    assert normalise("a\u0300 la carte") == "\u00e0 la carte"


def test_contains():
    assert contains("It is the U.S.A., surely", "usa")
    assert contains("Tirana", "Iran")  # no word boundaries
    assert contains("他住在北京。", "北京")
    assert not contains("Iran", "Tirana")
    assert not contains("", "x")


@pytest.mark.parametrize("gold", ["", " ", "?!", "The", "\n"])
def test_a_gold_that_normalises_to_nothing_matches_nothing(gold):
    assert not contains("anything at all", gold)
    assert not contains("", gold)
    assert not contains(gold, gold)

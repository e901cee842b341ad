"""Cutting texts into sentences and chunks, and reading files of them."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisrqa.data.passages import Passage, chunks_of, count_words, read_passages, sentences
from bisrqa.data.tally import Tally


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n ", []),
        ("One. Two? Three!", ["One.", "Two?", "Three!"]),
        ("Dr. Smith met J. R. Ewing in St. Louis. He left.",
         ["Dr. Smith met J. R. Ewing in St. Louis.", "He left."]),
        ("It cost 3.5 million, i.e. a lot. Yes.", ["It cost 3.5 million, i.e. a lot.", "Yes."]),
        ("He said \"Stop.\" Then he went.", ["He said \"Stop.\"", "Then he went."]),
        ("A title without an end\n\nA new paragraph", ["A title without an end",
                                                       "A new paragraph"]),
        ("第一句。第二句！“引用。”好", ["第一句。", "第二句！", "“引用。”", "好"]),
        ("approx. five of them... and more. End.", ["approx. five of them... and more.", "End."]),
    ],
)  # fmt: skip
def test_sentences(text, expected):
    assert sentences(text) == expected


@given(st.text(alphabet='ab.!? \n。JDr"', max_size=60))
@settings(deadline=None)
def test_no_letter_is_lost(text):
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


def test_sentences_keep_their_numbers():
    chunks = list(
        chunks_of([Passage("T", ("a b", " ", "c")), Passage("U", ()), Passage("T", ("d",))])
    )
    assert [(c.title, c.text, c.paragraph, c.start, c.stop) for c in chunks] == [
        ("T", "a b", 0, 0, 1), ("T", "c", 0, 2, 3), ("T", "d", 2, 0, 1),
    ]  # fmt: skip
    assert chunks[0].words == "T: a b"
    assert chunks[0]._replace(title="").words == "a b"


@given(
    st.lists(st.integers(0, 12), max_size=12), st.integers(1, 15), st.integers(0, 3)
)  # words of each sentence
@settings(deadline=None)
def test_windows_hold_whole_sentences_and_no_more_than_they_may(lengths, window, overlap):
    parts = tuple(" ".join(["w"] * n) for n in lengths)
    chunks = list(chunks_of([Passage("T", parts)], "window", window, overlap))
    covered = {s for c in chunks for s in range(c.start, c.stop)}
    assert {s for s, n in enumerate(lengths) if n} <= covered
    for chunk in chunks:
        spoken = [n for n in lengths[chunk.start : chunk.stop] if n]
        assert count_words(chunk.text) == sum(spoken)
        assert sum(spoken) <= window or len(spoken) == 1
    starts = [c.start for c in chunks]
    assert starts == sorted(set(starts))
    for one, other in pairwise(chunks):
        shared = [s for s in range(other.start, one.stop) if lengths[s]]
        assert len(shared) <= overlap


def test_words_of_both_scripts_count():
    assert count_words("two words") == 2
    assert count_words("三个字 x") == 4


def test_files_of_passages(tmp_path: Path):
    (tmp_path / "a.txt").write_text("One. Two.", "utf8")
    (tmp_path / "b.md").write_text("# First\nText one.\n## Second ##\nText two.\n# Empty\n", "utf8")
    rows = [{"title": "J", "text": "Line."}, {"text": "No title."}, {"title": "E", "text": " "}]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n", "utf8")
    (tmp_path / "ignored.pdf").write_text("x")
    tally = Tally()
    assert list(read_passages(tmp_path, tally)) == [
        Passage("a", ("One.", "Two."), "a.txt"), Passage("First", ("Text one.",), "b.md:1"),
        Passage("Second", ("Text two.",), "b.md:3"), Passage("J", ("Line.",), "c.jsonl:1"),
        Passage("", ("No title.",), "c.jsonl:2"),
    ]  # fmt: skip
    assert sum(tally.counts.values()) == 2  # E, and the heading without text
    assert list(read_passages(tmp_path / "a.txt")) == [Passage("a", ("One.", "Two."), "a.txt")]


@pytest.mark.parametrize(
    ("line", "said"),
    [("{", "broken JSON"), ("[1]", "expected an object"), ('{"text": 3}', "expected an object"),
     ('{"title": 1, "text": "x"}', "expected an object")],
)  # fmt: skip
def test_a_bad_line_is_named(tmp_path: Path, line, said):
    (tmp_path / "c.jsonl").write_text('{"text": "fine"}\n' + line + "\n", "utf8")
    with pytest.raises(ValueError, match=rf"c\.jsonl:2: {said}"):
        list(read_passages(tmp_path))


def test_nothing_to_read_is_said(tmp_path: Path):
    for path in (tmp_path, tmp_path / "absent", tmp_path / "x.pdf"):
        with pytest.raises(ValueError, match="expected a file or folder of"):
            list(read_passages(path))
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ValueError, match=r"bad\.txt: not a readable text"):
        list(read_passages(tmp_path))

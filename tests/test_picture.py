"""Pictures of events."""

from xml.etree import ElementTree

import pytest
import torch

from bisrqa import picture
from bisrqa.data.records import Chunk, Event
from bisrqa.graph.events import Fusion, alone, merged
from bisrqa.graph.texts import from_texts

CHUNKS = [Chunk("", f"第{n}篇说 <b>青禾公司</b> & 启用码头", n, 0, 1, str(n)) for n in range(3)]
EVENT = Event("青禾公司启用<码头>", "7月5日", "泰州", ("青禾公司",), "2023-07-05")


def graph():
    def fuse(told):
        one = merged(alone(0, told[0][1]), alone(1, told[1][1]))
        return Fusion((one, alone(2, told[2][1])), ())

    events = [(0, EVENT), (1, EVENT), (2, Event("别的事"))]

    def embed(texts):
        return torch.ones(len(texts), 1)

    return from_texts(CHUNKS, [], [], embed, [], None, events, fuse).graph


def test_a_fused_event_is_drawn_with_its_sources_and_parts():
    (found,) = picture.find(graph(), None)
    assert len(found.sources) == 2
    assert set(found.parts) == {("involves", "青禾公司"), ("located in", "泰州"),
                                ("dated", "2023-07-05")}  # fmt: skip
    root = ElementTree.fromstring(picture.svg(found))
    words = "".join(root.itertext())
    for part in ("<b>青禾公司</b> &", "第1篇", "泰州 (located in)", "<码头>"):
        assert part in words
    assert len(root.findall("{http://www.w3.org/2000/svg}line")) == 5
    assert picture.html([found]).count("<svg") == 1


def test_events_are_found_by_their_names():
    assert [one.name for one in picture.find(graph(), "别的")] == ["别的事"]
    assert picture.find(graph(), "没有") == []
    with pytest.raises(ValueError, match="no event"):
        picture.told(graph(), 0)


def test_long_texts_are_cut_with_a_mark():
    lines = picture.wrapped("上海" * 200)
    assert len(lines) == picture.MAX_LINES
    assert lines[-1].endswith("…")
    assert picture.wrapped("") == [""]

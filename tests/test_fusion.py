"""Which events are one: candidates, judges, merging, and undoing it."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bisrqa import fusion
from bisrqa.chat import Reply
from bisrqa.config import FusionConfig
from bisrqa.data.records import Chunk, Event
from bisrqa.fusion import Fuser, ModelJudge, Rules, candidates, conflicting, read_verdicts
from bisrqa.graph.events import alone, key_of, merged

CONFIG = FusionConfig(threshold=0.5)


def told(name: str, source: str, **known) -> tuple[Chunk, Event]:
    values = {"time": "", "place": "", "participants": (), "interval": ""} | known
    return Chunk("", name, 0, 0, 1, source), Event(name=name, **values)


OPENED = "青禾公司启用新码头并举行盛大仪式"
SAME = [
    told(OPENED, "a", place="泰州", participants=("青禾公司",), interval="2023-07-05"),
    told("青禾公司5日启用新码头", "b", place="泰州", participants=("青禾公司",),
         interval="2023-07-05"),
]  # fmt: skip


def judged(one, other) -> str:
    return Rules(CONFIG)([(alone(0, one[1]), alone(1, other[1]), 0.9)])[0][0]


def fuse(events, x=None, judge=None, **changes):
    config = FusionConfig(**({"threshold": 0.5} | changes))
    x = torch.ones(len(events), 2) / 2**0.5 if x is None else x
    return Fuser(config, judge or Rules(config))(events, x)


def test_one_event_of_two_texts_is_merged_with_all_that_is_known_of_it():
    one = told(OPENED, "a", place="泰州", participants=("青禾公司", "周远"), interval="2023-07-05",
               time="7月5日")  # fmt: skip
    found = fuse([one, SAME[1]])
    (event,) = found.events
    assert event.names == (OPENED, "青禾公司5日启用新码头")
    assert event.participants == ("青禾公司", "周远")
    assert event.places == ("泰州",)
    assert event.members == (0, 1)
    (decision,) = found.decisions
    assert decision.verdict == "same"
    assert decision.first == key_of(*one)
    assert "青禾公司" in decision.why


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"interval": "2023-07-06"}, "different"),  # same place and participants, another day
        ({"interval": "2023-07-01/2023-07-31"}, "same"),
        ({"place": "南京"}, "different"),
        ({"place": "泰州市"}, "same"),
        ({"interval": "", "place": "", "participants": ("青禾公司",)}, "unsure"),  # too little
    ],
)
def test_conflicts_and_too_little_keep_events_apart(change, verdict):
    chunk, event = SAME[1]
    other = chunk, event._replace(**change)
    assert judged(SAME[0], other) == verdict
    assert len(fuse([SAME[0], other]).events) == (1 if verdict == "same" else 2)


def test_numbers_tell_events_apart():
    one = told("武汉发放消费券共计500万元用于体育", "a", place="武汉", interval="2023-07-05")
    other = told("武汉发放消费券共计800万元用于体育", "b", place="武汉", interval="2023-07-05")
    assert judged(one, other) == "different"
    assert "500" in str(conflicting(alone(0, one[1]), alone(1, other[1])))


def test_that_somebody_said_something_is_no_event():
    said = {"place": "北京", "participants": ("毛宁", "外交部"), "interval": "2023-07-20"}
    assert judged(told("外交部发言人毛宁20日表示", "a", **said),
                  told("外交部发言人毛宁20日表示", "b", **said)) == "unsure"  # fmt: skip


def test_candidates_are_near_and_of_other_texts_and_share_an_entity():
    events = [
        told("e0", "a", participants=("青禾公司",)),
        told("e1", "a", participants=("青禾公司",)),  # the same text
        told("e2", "b", participants=("青禾公司",)),
        told("e3", "c", participants=("别的公司",)),  # nothing shared
        told("e4", "d", participants=("青禾公司",)),  # far away
    ]
    x = torch.tensor([[1.0, 0], [1, 0], [1, 0], [1, 0], [0, 1]])
    assert candidates(events, x, CONFIG) == [(0, 2, 1.0), (1, 2, 1.0)]
    assert candidates(events[:1], x[:1], CONFIG) == []
    assert candidates([], x[:0], CONFIG) == []


def test_both_searches_find_the_same():
    torch.manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(200, 8), dim=-1)
    events = [told(f"event {n}", str(n), participants=("all",)) for n in range(200)]
    exact, index = (
        candidates(events, x, FusionConfig(threshold=0.7, search=search))
        for search in ("torch", "faiss")
    )
    pairs = [{pair[:2] for pair in found} for found in (exact, index)]
    assert len(pairs[0] & pairs[1]) >= 0.9 * len(pairs[0]) > 0


def test_many_events_are_not_compared_in_all_pairs(monkeypatch):
    monkeypatch.setattr(fusion, "MOST_EXACT", 50)
    monkeypatch.setattr(fusion, "nearest", lambda *_: pytest.fail("all pairs"))
    torch.manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(51, 8), dim=-1)
    events = [told(f"event {n}", str(n), participants=("all",)) for n in range(51)]
    assert candidates(events, x, CONFIG)
    with pytest.raises(pytest.fail.Exception):
        candidates(events[:50], x[:50], CONFIG)


def test_nothing_is_merged_because_of_what_is_merged_with_it():
    """a and b are one, b and c look alike, but c is on a day that a is not."""
    a = told(OPENED, "a", place="泰州", participants=("青禾公司",), interval="2023-07-05")
    b = told(OPENED, "b", place="泰州", participants=("青禾公司", "周远"))
    c = told(OPENED, "c", place="泰州", participants=("青禾公司", "周远"), interval="2023-07-09")
    assert judged(a, b) == judged(b, c) == "same"
    found = fuse([a, b, c], batch_size=1)
    assert sorted(len(event.members) for event in found.events) == [1, 2]
    assert {d.verdict for d in found.decisions} == {"same", "different"}


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_ten_mentions_become_one_event_in_any_batches(batch_size):
    events = [
        told(OPENED, str(n), place="泰州", participants=("青禾公司",), interval="2023-07-05")
        for n in range(10)
    ]
    found = fuse(events, neighbours=9, batch_size=batch_size)
    assert [event.members for event in found.events] == [tuple(range(10))]


def test_a_merge_is_undone_by_a_line(tmp_path):
    keys = [key_of(*one) for one in SAME]
    assert len(fuse(SAME).events) == 1
    file = tmp_path / "verdicts.jsonl"
    file.write_text(json.dumps([*keys, "different"], ensure_ascii=False) + "\n\n", "utf8")
    overrides = read_verdicts(str(file))
    config = FusionConfig(threshold=0.5)
    found = Fuser(config, Rules(config), overrides)(SAME, torch.ones(2, 1))
    assert len(found.events) == 2
    assert found.decisions[0][2:4] == ("different", "said by the file of verdicts")


@pytest.mark.parametrize(
    "line", ["{", '["a", "b"]', '["a", "b", "maybe"]', '["a", "a", "same"]', "3"]
)
def test_a_broken_line_of_verdicts_is_named(tmp_path, line):
    file = tmp_path / "verdicts.jsonl"
    file.write_text(f"\n{line}\n", "utf8")
    with pytest.raises(ValueError, match=r"verdicts\.jsonl:2"):
        read_verdicts(str(file))
    with pytest.raises(ValueError, match="nowhere"):
        read_verdicts(str(tmp_path / "nowhere"))


class Says:
    """A chat with one reply for everything."""

    identity = "says"

    def __init__(self, reply: str):
        self.reply, self.asked = reply, []

    def __call__(self, conversations, schema=None):
        self.asked += conversations
        return [Reply(self.reply) for _ in conversations]


@pytest.mark.parametrize(
    ("reply", "events"),
    [
        ('{"reason": "同一码头", "verdict": "same"}', 1),
        ('{"reason": "?", "verdict": "different"}', 2),
        ('{"reason": "?", "verdict": "perhaps"}', 2),
        ('{"reason": "同一码头", "verd', 2),  # cut off
        ("banana", 2),
        ("", 2),
        ("[]", 2),
    ],
)
def test_a_model_judges_and_its_nonsense_merges_nothing(reply, events):
    judge = ModelJudge(Says(reply))
    found = fuse(SAME, judge=judge)
    assert len(found.events) == events
    if "verdict" not in reply or "perhaps" in reply:
        assert found.decisions[0].verdict == "unsure"
        assert "cannot be understood" in found.decisions[0].why


def test_a_model_is_not_asked_what_rules_exclude():
    says = Says('{"reason": "", "verdict": "same"}')
    chunk, event = SAME[1]
    found = fuse([SAME[0], (chunk, event._replace(interval="2023-08-01"))], judge=ModelJudge(says))
    assert says.asked == []
    assert found.decisions[0].verdict == "different"


def test_without_a_judge_all_stay_alone(tmp_path):
    apart = fusion.build(
        FusionConfig(judge="none"), lambda texts: torch.ones(len(texts), 2), tmp_path
    )
    assert len(apart(SAME).events) == 2
    assert apart(SAME).decisions == ()


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["", "2023-07-05", "2023-07-06"]),
                  st.sampled_from(["", "泰州", "南京"])),
        max_size=8,
    )
)  # fmt: skip
def test_every_event_is_in_one_place_and_no_event_contradicts_itself(rows):
    events = [
        told(OPENED, source, interval=interval, place=place, participants=("青禾公司", "周远"))
        for source, interval, place in rows
    ]
    found = fuse(events, neighbours=8)
    members = sorted(member for event in found.events for member in event.members)
    assert members == list(range(len(events)))
    for event in found.events:
        assert len(event.intervals) <= 1
        assert len(event.places) <= 1


def test_merging_does_not_depend_on_the_order():
    one, other = alone(0, SAME[0][1]), alone(1, SAME[1][1])
    assert merged(one, other) == merged(other, one)

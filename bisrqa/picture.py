"""A picture of an event: the texts that tell of it, and what it has to do with (SVG or HTML)."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple
from unicodedata import east_asian_width

from bisrqa.graph.tensors import GraphTensors, NodeKind
from bisrqa.graph.texts import DESCRIBES

WIDTH, BOX, GAP, LINE, PAD = 1080, 330, 18, 18, 10
UNITS = 44
"""Letters in a line of a box; a Chinese one counts twice."""
MAX_LINES = 6
COLOURS = {"text": "#eef3fa", "event": "#fdf0d5", "entity": "#eaf6ea"}


class Told(NamedTuple):
    """An event, its sources and the parts of it."""

    event: int
    name: str
    sources: tuple[str, ...]
    parts: tuple[tuple[str, str], ...]
    """Relation and name, each once."""


def told(graph: GraphTensors, event: int) -> Told:
    """What a graph says of an event node.

    Raises:
        ValueError: The node is no event.
    """
    if int(graph.node_kind[event]) != NodeKind.EVENT:
        raise ValueError(f"node {event} is no event")
    head, tail = graph.edge_index
    names, kinds = graph.node_text, graph.relation_text
    from_texts = (tail == event).nonzero().squeeze(1).tolist()
    of_event = (head == event).nonzero().squeeze(1).tolist()
    tells = [edge for edge in from_texts if kinds[int(graph.edge_type[edge])] == DESCRIBES]
    sources = [names[int(head[edge])] for edge in tells]
    parts = [(kinds[int(graph.edge_type[edge])], names[int(tail[edge])]) for edge in of_event]
    return Told(event, names[event], tuple(dict.fromkeys(sources)), tuple(dict.fromkeys(parts)))


def find(graph: GraphTensors, asked: str | None) -> list[Told]:
    """Events whose name or sources hold some text, those that most texts tell of first.

    Without a text, all events that more than one text tells of.
    """
    events = (graph.node_kind == NodeKind.EVENT).nonzero().squeeze(1).tolist()
    tail = graph.edge_index[1]
    rows = [kind == DESCRIBES for kind in graph.relation_text]
    counts: dict[int, int] = {}
    for edge, kind in enumerate(graph.edge_type.tolist()):
        if rows[kind]:
            counts[int(tail[edge])] = counts.get(int(tail[edge]), 0) + 1
    order = sorted(events, key=lambda event: (-counts.get(event, 0), event))
    if asked is None:
        return [told(graph, event) for event in order if counts.get(event, 0) > 1]
    return [told(graph, event) for event in order if asked in graph.node_text[event]]


def svg(one: Told) -> str:
    """The picture: sources on the left, the event in the middle, its parts on the right."""
    left = [wrapped(text) for text in one.sources]
    right = [wrapped(f"{name}  ({relation})") for relation, name in one.parts]
    middle = wrapped(one.name)
    height = max(_height(left), _height(right), _height([middle])) + 2 * GAP
    columns = (GAP, (WIDTH - BOX) // 2, WIDTH - BOX - GAP)
    centre = height // 2
    event_top = centre - _box(middle) // 2
    shapes, lines = [], []
    for boxes, x, colour, towards in (
        (left, columns[0], "text", True),
        (right, columns[2], "entity", False),
    ):
        y = (height - _height(boxes)) // 2
        for box in boxes:
            shapes.append(_rectangle(x, y, box, colour))
            start = (x + BOX, y + _box(box) // 2) if towards else (columns[1] + BOX, centre)
            stop = (columns[1], centre) if towards else (x, y + _box(box) // 2)
            lines.append(
                f'<line x1="{start[0]}" y1="{start[1]}" x2="{stop[0]}" y2="{stop[1]}" '
                'stroke="#8a8f98" stroke-width="1"/>'
            )
            y += _box(box) + GAP
    shapes.append(_rectangle(columns[1], event_top, middle, "event"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="13">'
        f'<title>{escape(one.name)}</title><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(lines)}{''.join(shapes)}</svg>\n"
    )


def html(found: Sequence[Told]) -> str:
    """Pictures of several events on one page."""
    body = "".join(f"<h2>{escape(one.name)}</h2>{svg(one)}" for one in found)
    return f'<!doctype html><meta charset="utf-8"><title>Events</title>{body}\n'


def wrapped(text: str) -> list[str]:
    """Lines of a text; what does not fit is cut off with a mark."""
    lines, line, used = [], "", 0
    for letter in " ".join(text.split()):
        size = 2 if east_asian_width(letter) in "WF" else 1
        if used + size > UNITS:
            lines.append(line)
            line, used = "", 0
        line, used = line + letter, used + size
    lines.append(line)
    return (
        lines if len(lines) <= MAX_LINES else [*lines[: MAX_LINES - 1], f"{lines[MAX_LINES - 1]}…"]
    )


def _box(lines: Sequence[str]) -> int:
    return len(lines) * LINE + 2 * PAD


def _height(boxes: Sequence[Sequence[str]]) -> int:
    return sum(_box(box) + GAP for box in boxes)


def _rectangle(x: int, y: int, lines: Sequence[str], colour: str) -> str:
    words = "".join(
        f'<text x="{x + PAD}" y="{y + PAD + LINE * (n + 1) - 5}">{escape(line)}</text>'
        for n, line in enumerate(lines)
    )
    return (
        f'<rect x="{x}" y="{y}" width="{BOX}" height="{_box(lines)}" rx="6" '
        f'fill="{COLOURS[colour]}" stroke="#8a8f98"/>{words}'
    )

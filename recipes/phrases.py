"""What neither debates nor short sentences say often enough to be learned: times of day, letters, orders, the way, and
the words of kitchens, screens, shops, sports and news.

    python recipes/phrases.py data/everyday-en-de/phrases.tsv

writes English sentences and their German: those of phrasebook/, written for this, and those made from the patterns of
phrases.txt, each with times, days, names and things drawn at random, the same in every run. "Half past seven" is "halb
acht", which has to be counted, not translated. What everyday.py holds out, or would, is left out.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from everyday import number_of, split_of, typed
from num2words import num2words

EACH = 150  # sentences drawn from a pattern, as far as they differ
OFTEN = 8  # a pattern without anything to draw is written so many times, and once as people type
BOOK = 3  # likewise a sentence of the phrase book

DAYS = """Monday Montag, Tuesday Dienstag, Wednesday Mittwoch, Thursday Donnerstag, Friday Freitag, Saturday Samstag,
Sunday Sonntag"""
MONTHS = """January Januar, February Februar, March März, April April, May Mai, June Juni, July Juli, August August,
September September, October Oktober, November November, December Dezember"""
CITIES = """Berlin Berlin, Munich München, Vienna Wien, Cologne Köln, Hamburg Hamburg, London London, Paris Paris,
Zurich Zürich, Rome Rom, Prague Prag, Geneva Genf, Brussels Brüssel, Frankfurt Frankfurt, Leipzig Leipzig,
Dresden Dresden, Lisbon Lissabon, Warsaw Warschau, Nuremberg Nürnberg, Milan Mailand, Venice Venedig, Athens Athen"""
WOMEN = """Anna Maria Sarah Julia Laura Emma Lisa Sophie Claudia Susan Jane Kate Helen Lucy Mary Eva Nina Clara Alice
Barbara Charlotte Diana Elena Hannah Ingrid Katharina Linda Monika Olivia Petra Rachel Sandra Ursula"""
MEN = """Peter John Paul Thomas Michael David Martin Daniel Max Jack James Robert Felix Tom Simon Mark Lukas Ben Adam
Bernd Charles Dieter Erik Frank George Henry Jonas Karl Leon Oliver Philip Stefan William"""
SURNAMES = """Smith Brown Miller Taylor Wilson Baker Schmidt Wagner Becker Fischer Weber Klein Wolf Jones Clark Müller
Schneider Hoffmann Schulz Koch Richter Neumann Johnson Williams Davis Moore Anderson Harris Lewis Walker"""
WORDS = """example shop news travel garden music cars books health school museum hotel market photo recipes blog jobs
sports weather city house cloud data forum wiki docs help about contact login index page download events tickets berlin
london"""
# What one asks the way to: as it is, where to, and what there may be near here.
PLACES = """the station: der Bahnhof, zum Bahnhof, den Bahnhof
the train station: der Bahnhof, zum Bahnhof, den Bahnhof
the airport: der Flughafen, zum Flughafen, den Flughafen
the hotel: das Hotel, zum Hotel, das Hotel
the museum: das Museum, zum Museum, das Museum
the hospital: das Krankenhaus, zum Krankenhaus, das Krankenhaus
the town hall: das Rathaus, zum Rathaus, das Rathaus
the city centre: das Stadtzentrum, zum Stadtzentrum, das Stadtzentrum
the post office: die Post, zur Post, die Post
the bank: die Bank, zur Bank, die Bank
the library: die Bibliothek, zur Bibliothek, die Bibliothek
the pharmacy: die Apotheke, zur Apotheke, die Apotheke
the bakery: die Bäckerei, zur Bäckerei, die Bäckerei
the university: die Universität, zur Universität, die Universität
the police station: die Polizeiwache, zur Polizeiwache, die Polizeiwache
the bus stop: die Bushaltestelle, zur Bushaltestelle, die Bushaltestelle
the beach: der Strand, zum Strand, den Strand
the supermarket: der Supermarkt, zum Supermarkt, den Supermarkt
the swimming pool: das Schwimmbad, zum Schwimmbad, das Schwimmbad
the restaurant: das Restaurant, zum Restaurant, das Restaurant"""
NEAR = """station: der nächste Bahnhof, einen Bahnhof
train station: der nächste Bahnhof, einen Bahnhof
underground station: die nächste U-Bahn-Station, eine U-Bahn-Station
bus stop: die nächste Bushaltestelle, eine Bushaltestelle
pharmacy: die nächste Apotheke, eine Apotheke
supermarket: der nächste Supermarkt, einen Supermarkt
bakery: die nächste Bäckerei, eine Bäckerei
bank: die nächste Bank, eine Bank
hospital: das nächste Krankenhaus, ein Krankenhaus
petrol station: die nächste Tankstelle, eine Tankstelle
restaurant: das nächste Restaurant, ein Restaurant
post office: die nächste Post, eine Post
police station: die nächste Polizeiwache, eine Polizeiwache
cash machine: der nächste Geldautomat, einen Geldautomaten"""
# What one orders: as it is had, and as it is.
FOOD = """a coffee: einen Kaffee, ein Kaffee
a cup of coffee: eine Tasse Kaffee, eine Tasse Kaffee
a cup of tea: eine Tasse Tee, eine Tasse Tee
a tea: einen Tee, ein Tee
a beer: ein Bier, ein Bier
a glass of water: ein Glas Wasser, ein Glas Wasser
a glass of red wine: ein Glas Rotwein, ein Glas Rotwein
a glass of white wine: ein Glas Weißwein, ein Glas Weißwein
a bottle of water: eine Flasche Wasser, eine Flasche Wasser
a bottle of wine: eine Flasche Wein, eine Flasche Wein
an orange juice: einen Orangensaft, ein Orangensaft
a piece of cake: ein Stück Kuchen, ein Stück Kuchen
a piece of chocolate cake: ein Stück Schokoladenkuchen, ein Stück Schokoladenkuchen
a slice of bread: eine Scheibe Brot, eine Scheibe Brot
a sandwich: ein belegtes Brot, ein belegtes Brot
a salad: einen Salat, ein Salat
a soup: eine Suppe, eine Suppe
a pizza: eine Pizza, eine Pizza
an apple: einen Apfel, ein Apfel
an ice cream: ein Eis, ein Eis
two beers: zwei Bier, zwei Bier
two coffees: zwei Kaffee, zwei Kaffee"""
THINGS = """milk: Milch
bread: Brot
eggs: Eier
butter: Butter
cheese: Käse
sugar: Zucker
salt: Salz
potatoes: Kartoffeln
tomatoes: Tomaten
apples: Äpfel"""

COPIED = ("email", "url", "file", "sign", "word")  # are written as they are, even where a sentence begins
# Signs without a token: emoji, symbols, Chinese, Japanese, Korean, Cyrillic, Greek, Arabic, Hebrew, Devanagari.
SIGNS = [(0x1F300, 0x1F64F)] * 4 + [(0x1F680, 0x1F6C5), (0x2600, 0x26FF), (0x1F90D, 0x1F9FF), (0x2190, 0x21FF)]
SIGNS += [(0x4E00, 0x9FBF)] * 2 + [(0x3041, 0x3096), (0xAC00, 0xD7A3), (0x430, 0x44F), (0x3B1, 0x3C9)]
SIGNS += [(0x627, 0x64A), (0x5D0, 0x5EA), (0x905, 0x939)]
Draw = Callable[[random.Random], tuple[str, dict[str, str]]]  # the English word, and German ones by name


def clock(rng: random.Random) -> tuple[str, dict[str, str]]:
    """A time of day in English and in German, as it follows "um"."""
    hour = rng.randint(1, 12)
    here = str(hour) if rng.random() < 0.25 else num2words(hour)
    german, next_german = (num2words(h, lang="de") for h in (hour, hour % 12 + 1))
    match rng.choice(["whole", "half", "half", "half", "quarter", "quarter", "minutes", "digits", "later", "later"]):
        case "whole":
            english, deutsch = f"{here} o'clock", f"{'ein' if hour == 1 else german} Uhr"
        case "half":
            english, deutsch = f"half past {here}", f"halb {next_german}"
        case "quarter":
            way, weg = rng.choice([("past", "nach"), ("to", "vor")])
            english, deutsch = f"{rng.choice(['a quarter', 'quarter'])} {way} {here}", f"Viertel {weg} {german}"
        case "minutes":
            way, weg = rng.choice([("past", "nach"), ("to", "vor")])
            minutes = rng.choice([5, 10, 20, 25])
            english, deutsch = f"{num2words(minutes)} {way} {here}", f"{num2words(minutes, lang='de')} {weg} {german}"
        case "digits":
            minutes = rng.randrange(0, 60, 5)
            english, deutsch = f"{hour}:{minutes:02}", f"{hour}:{minutes:02} Uhr"
        case _:
            minutes, evening = rng.choice([0, 0, 0, 15, 30, 45]), rng.random() < 0.6
            past, on_the_day = (f":{minutes:02}" if minutes else ""), hour % 12 + (12 if evening else 0)
            half = rng.choice(["p.m.", "pm"] if evening else ["a.m.", "am"])
            english, deutsch = f"{hour}{past} {half}", f"{on_the_day}{past} Uhr"
    return english, {"time": deutsch}


def date(rng: random.Random) -> tuple[str, dict[str, str]]:
    """A day of the year, as it follows "on" and "am"."""
    day, (english, german) = rng.randint(1, 28), rng.choice(listed(MONTHS))
    ordinal = num2words(day, to="ordinal_num")
    said = [f"{english} {day}", f"{day} {english}", f"the {ordinal} of {english}", f"{english} {ordinal}"]
    return rng.choice(said), {"date": f"{day}. {german}"}


def listed(words: str) -> list[tuple[str, str]]:
    """Pairs of an English and a German word."""
    return [(english, german) for english, german in (pair.split() for pair in words.split(","))]


def pair(name: str, words: str) -> Draw:
    def draw(rng: random.Random) -> tuple[str, dict[str, str]]:
        english, german = rng.choice(listed(words))
        weekly = f"{german.lower()}s"
        return english, {name: german, "weekly": weekly, "Weekly": weekly.capitalize()}

    return draw


def forms(table: str, *names: str) -> Draw:
    """A line of a table: its English, and the German forms by name."""

    def draw(rng: random.Random) -> tuple[str, dict[str, str]]:
        english, _, german = rng.choice(table.split("\n")).partition(": ")
        return english, dict(zip(names, german.split(", "), strict=True))

    return draw


def number(rng: random.Random) -> tuple[str, dict[str, str]]:
    """A small one, in digits on both sides or in words."""
    n = rng.randint(2, 12)
    digits = rng.random() < 0.3
    return (str(n) if digits else num2words(n)), {"n": str(n) if digits else num2words(n, lang="de"), "digit": str(n)}


def price(rng: random.Random) -> tuple[str, dict[str, str]]:
    whole, cents = rng.randint(2, 99), rng.choice(["", "", ".50", ".80", ".90", ".95"])
    return f"{whole}{cents}", {"price": f"{whole}{cents.replace('.', ',')}"}


def copied(name: str, make: Callable[[random.Random], str]) -> Draw:
    """What is the same in both languages."""

    def draw(rng: random.Random) -> tuple[str, dict[str, str]]:
        made = make(rng)
        return made, {name: made}

    return draw


def same(name: str, words: str) -> Draw:
    """One of some words that are."""
    return copied(name, lambda rng: rng.choice(words.split()))


def email(rng: random.Random) -> str:
    people = f"{WOMEN} {MEN} {SURNAMES}".lower().replace("ü", "ue").split()
    who = rng.choice([*people, "info", "office", "contact", "jobs", "press", "support"])
    more = rng.choice(["", "", f".{rng.choice(people)}", f"_{rng.randint(1, 99)}", str(rng.randint(1, 99))])
    return f"{who}{more}@{site(rng)}"


def url(rng: random.Random) -> str:
    begin = rng.choice(["https://", "https://www.", "http://", "www.", "www.", ""])
    path = "/".join(rng.choices(WORDS.split(), k=rng.randint(0, 2)))
    end = rng.choice(["", "", ".html", f"?id={rng.randint(1, 999)}"]) if path else ""
    return f"{begin}{site(rng)}{'/' if path else ''}{path}{end}"


def site(rng: random.Random) -> str:
    name = (
        rng.choice(["", "my", "the", "e-"])
        + rng.choice(WORDS.split())
        + rng.choice(["", "", f"-{rng.choice(WORDS.split())}", "24"])
    )
    return f"{name}.{rng.choice(['com', 'de', 'org', 'net', 'eu', 'co.uk', 'io'])}"


def phone(rng: random.Random) -> str:
    area, rest = rng.choice(["030", "089", "0221", "+49 40", "+44 20", "0171"]), rng.randint(10_000, 99_999_999)
    return f"{area}{rng.choice([' ', ' ', '/'])}{rest}"


def amount(rng: random.Random) -> tuple[str, dict[str, str]]:
    """A number with its thousands apart, perhaps with cents."""
    least, cents = rng.choice([1_000, 10_000, 100_000, 1_000_000]), rng.choice(["", "", ".50", ".00", ".75", ".99"])
    english = f"{rng.randint(least, 10 * least):,}{cents}"
    return english, {"amount": english.translate(str.maketrans(",.", ".,"))}


def count(rng: random.Random) -> tuple[str, dict[str, str]]:
    """A whole number with its thousands apart."""
    english = f"{rng.randint(10 ** rng.randint(3, 7), 10**8):,}"
    return english, {"count": english.replace(",", ".")}


def decimal(rng: random.Random) -> tuple[str, dict[str, str]]:
    english = f"{rng.randint(0, 99)}.{rng.choice([rng.randint(1, 9), f'{rng.randint(1, 99):02}'])}"
    return english, {"decimal": english.replace(".", ",")}


def money(rng: random.Random) -> tuple[str, dict[str, str]]:
    """A sum with a sign before it, which German says behind it."""
    sign, german = rng.choice([("$", "Dollar"), ("€", "Euro"), ("£", "Pfund")])
    (english, told), name = rng.choice([(price(rng), "price"), (amount(rng), "amount")])
    return f"{sign}{english}", {"money": f"{told[name]} {german}"}


def file(rng: random.Random) -> str:
    ending = rng.choice(["txt", "pdf", "json", "csv", "py", "zip", "jpg", "docx", "xlsx", "mp3", "toml", "md"])
    return f"{rng.choice(WORDS.split())}{rng.choice(['', '', '_2', '-final', '1'])}.{ending}"


def sign(rng: random.Random) -> str:
    """Emoji, or a word in a script that the model cannot read."""
    begin, end = rng.choice(SIGNS)
    return "".join(chr(rng.randint(begin, end)) for _ in range(rng.choice([1, 1, 1, 2, 3])))


def some_place(rng: random.Random) -> tuple[str, dict[str, str]]:
    english, german = forms(NEAR, "near", "some_place")(rng)
    return f"a{'n' if english[0] in 'aeiou' else ''} {english}", german


DRAWN: dict[str, Draw] = {
    "time": clock,
    "date": date,
    "day": pair("day", DAYS),
    "city": pair("city", CITIES),
    "woman": same("woman", WOMEN),
    "man": same("man", MEN),
    "name": same("name", f"{WOMEN} {MEN}"),
    "name2": same("name2", f"{WOMEN} {MEN}"),
    "surname": same("surname", SURNAMES),
    "n": number,
    "age": copied("age", lambda rng: str(rng.randint(3, 99))),
    "price": price,
    "place": forms(PLACES, "place", "to_place", "place_acc"),
    "near": forms(NEAR, "near", "some_place"),
    "some_place": some_place,
    "day2": pair("day2", DAYS),
    "email": copied("email", email),
    "url": copied("url", url),
    "phone": copied("phone", phone),
    "digits": copied("digits", lambda rng: str(rng.randint(1, 10 ** rng.randint(1, 8)))),
    "amount": amount,
    "count": count,
    "decimal": decimal,
    "money": money,
    "file": copied("file", file),
    "sign": copied("sign", sign),
    "sign2": copied("sign2", sign),
    "word": same("word", WORDS),
    "food": forms(FOOD, "food", "food_nom"),
    "food2": forms(FOOD, "food2", "food2_nom"),
    "Food": forms(FOOD, "Food", "Food_nom"),
    "thing": forms(THINGS, "thing"),
    "thing2": forms(THINGS, "thing2"),
}


def pairs(pattern: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Sentences made from a pattern, in both languages."""
    english, german = (side.strip() for side in pattern.split("|"))
    names = re.findall(r"{(\w+)}", english)
    if not names:
        yield from [(english, german)] * OFTEN
        yield typed(english), german
        return
    found: dict[str, str] = {}
    for _ in range(EACH):
        left, right = {}, {}
        for name in names:
            left[name], words = DRAWN[name](rng)
            right |= words
        said, written = english.format(**left).replace("m..", "m."), german.format(**right)
        if names[0] not in COPIED or not english.startswith("{"):
            said, written = capital(said), capital(written)
        found[said] = written
    yield from found.items()


def capital(sentence: str) -> str:
    """A sentence begins with one, but for words that are written small on purpose."""
    return sentence[0].upper() + sentence[1:]


def lines(path: Path) -> list[str]:
    """What a file has, without headings."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("# ")]


def main(out: str) -> None:
    rng, patterns = random.Random(1), Path(__file__).with_suffix(".txt")
    rows = [row for line in lines(patterns) for row in pairs(line, rng)]
    for book in sorted(Path(__file__).with_name("phrasebook").glob("*.txt")):
        for line in lines(book):
            english, german = line.split(" | ")
            rows += [*[(english, german)] * BOOK, (typed(english), german)]
    rows = [row for row in rows if split_of(number_of(row[0])) == "train"]
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text("".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
    print(f"{out}: {len(rows):,} pairs")


if __name__ == "__main__":
    main(*sys.argv[1:])

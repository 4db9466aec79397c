"""A text in sentences, for a model that has learned from sentences; and together again, exactly as it was.

Rules, not a model: a sentence ends at ``. ! ? …`` and what closes after it, before a space and something that can
begin one. Where that is unsure (abbreviations of English, German and French, initials, ordinals), it goes on, unless
the next word is one that mostly begins sentences: two sentences in one piece are translated better than two halves of
one. Text that has no capitals where it could have them is therefore split at its lines only.
"""

# ruff: noqa: RUF001  the signs of other scripts are meant

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Piece(NamedTuple):
    """A sentence or a part of one, and what stands between it and the next: spaces, line ends, or nothing.

    ``text`` is empty only where a text begins with spaces: then there is nothing before them.
    """

    text: str
    after: str = ""


def join(pieces: Iterable[Piece]) -> str:
    """Pieces together again.

    >>> pieces = split("Hello. Who is\\n there?")
    >>> join(pieces), join(piece._replace(text=piece.text.upper()) for piece in pieces)
    ('Hello. Who is\\n there?', 'HELLO. WHO IS\\n THERE?')
    """
    return "".join(text + after for text, after in pieces)


# ---------------------------------------------------------------------------------------
# Sentences


def split(text: str) -> list[Piece]:
    """The sentences of a text; a line end always ends one.

    >>> [piece.text for piece in split("Dr. No is here. Er kommt z. B. am 3. Mai!  „Wo?“ fragte sie.")]
    ['Dr. No is here.', 'Er kommt z. B. am 3. Mai!', '„Wo?“ fragte sie.']
    >>> split("One.\\n\\nTwo. ")
    [Piece(text='One.', after='\\n\\n'), Piece(text='Two.', after=' ')]
    """
    pieces, begin = [], 0
    for place in _PLACES.finditer(text):
        # Between words there are spaces, which belong to no sentence; wide signs end one without.
        end = place.end() if place["wide"] else place.start()
        if _ends(text, begin, place):
            pieces.append(Piece(text[begin:end], text[end : place.end()]))
            begin = place.end()
    return [*pieces, Piece(text[begin:])] if begin < len(text) else pieces


def ends_line(after: str) -> bool:
    """Whether what stands after a piece ends its line."""
    return bool(_LINE_END.search(after))


def mark(line: str) -> str:
    """What makes a line an item of a list, a heading or a quotation, with the space after it: layout, no words.

    >>> mark("- One. Two."), mark("## Results"), mark("10. Stir."), mark("b) no"), mark("> > Ja."), mark("-5 °C")
    ('- ', '## ', '10. ', 'b) ', '> > ', '')
    """
    return found[0] if (found := _MARK.match(line)) else ""


def tail(sentence: str) -> str:
    """The emoji at the end of a sentence, with the space before them: what stands behind the words stays there.

    >>> tail("See you! 🎉 🎂"), tail("I love 🍕."), tail("🍕")
    (' 🎉 🎂', '', '')
    """
    return found[0] if (found := _TAIL.search(sentence)) else ""


_MARK = re.compile(r"(?:(?:#{1,6}|[-–—*+•·>]|\d{1,3}[.)]|[^\W\d_]\))[^\S\n\r]+)+(?=\S)")
_OPEN = "\"'“”„‟‚‘’«»‹›([{¿¡「『《〈【（"
_CLOSE = "\"'“”’‘«»‹›)]}」』》〉】）"
_WIDE = "。！？｡"
_EMOJI = "\u2600-\u27bf\ufe0f\u200d\U0001f300-\U0001faff"
_TAIL = re.compile(rf"(?<=\S)(?<![{_EMOJI}])(?:\s*[{_EMOJI}]+)+\Z")
_PLACES = re.compile(rf"\s+|(?P<wide>[{_WIDE}]++[{re.escape(_CLOSE)}]*+)(?!\s)")
_LINE_END = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_STOP = re.compile(rf"(?P<word>\S*?)(?P<stop>[.!?…{_WIDE}।॥؟۔]+)(?:[{re.escape(_CLOSE)}]|\s?[»{_EMOJI}])*\Z")
_NEXT = re.compile(
    rf"(?:(?:[-–—·•*…]|\.\.\.)\s?)?(?:«\s|[{re.escape(_OPEN)}$€£#@]){{0,3}}(?P<word>\w+)(?P<then>[.'’]?)"
)
_LETTER = re.compile(r"\w")
_FAR = 64  # characters: longer than any word that matters


def _ends(text: str, begin: int, place: re.Match[str]) -> bool:
    """Whether the sentence that began at ``begin`` ends where this place is."""
    start, end = place.span()
    if end == len(text) or ends_line(place[0]):
        return True
    if place["wide"]:  # after a closing quote the sentence may go on: 「行こう。」と言った。
        return place[0][-1] not in _CLOSE or text[end] in _OPEN
    if start == 0:
        return True
    if text[start - 1].isalnum():  # as nearly everywhere
        return False
    before, following = _STOP.search(text, max(begin, start - _FAR), start), _NEXT.match(text, end)
    if not before or not following or before["word"].endswith(("(", "[")):  # (?) and [...] are remarks
        return False
    if before["stop"][-1] in _WIDE:
        return True
    if following["word"][0].islower() or (before["stop"] == "." and _goes_on(text, begin, before, following)):
        return False
    return bool(_LETTER.search(text, begin, start))  # an ellipsis may also begin a sentence


def _goes_on(text: str, begin: int, before: re.Match[str], following: re.Match[str]) -> bool:
    """Whether a full stop belongs to the word before it: an abbreviation, an initial, an ordinal."""
    word = _ELIDED.sub("", before["word"].lstrip(_OPEN))
    last = re.split("[-–—/]", word)[-1]
    if word.lower() in _NEVER or last.lower() in _NEVER:
        return True
    if last.lower() in _NUMBERED:
        return following["word"][0].isdecimal()
    if _COUNTED.search(text, max(begin, before.start() - 2), before.end("word")):
        return False
    if len(last) <= 2 and _SPACED.search(text, max(begin, before.start() - 4), before.start()):
        return True  # z. B., i. d. R., p. ex.
    ordinal = len(word) <= 3 and word.isdecimal()
    initial = len(last) == 1 and last.lower() != last.upper()
    if not (ordinal or initial or _DOTTED.fullmatch(word) or _ROMAN.fullmatch(word) or last.lower() in _MAYBE):
        return False
    if initial and last.islower():
        return True
    if before.start() == begin:  # 1. The first point
        return True
    elided = following["then"] in ("'", "’") and len(following["word"]) <= 2  # C'est
    return not (elided or (following["word"] in _BEGINNERS and following["then"] != "."))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ELIDED = re.compile(r"^(?:[cdjlmnst]|qu)['’]", re.IGNORECASE)
_DOTTED = re.compile(r"(?:[^\W\d_]{1,2}\.-?)+[^\W\d_]{1,2}")  # U.S, p.m, Ph.D
_ROMAN = re.compile("[IVXLC]{2,6}")
_COUNTED = re.compile(r"\d\s(?:\d{3}|[ghlmst])\Z")  # 300 000, 12 m
_SPACED = re.compile(r"\b[a-zäöü]\.\s\Z")

# Something of the same sentence must follow.
_NEVER = _words("""
    mr mrs ms messrs dr drs prof rev hon mlle mme mgr hr hrn frl fr dipl ing vs viz cf e.g i.e approx resp
    z.b d.h u.a i.d.r m.e u.u z.t o.g v.a bzw bspw vgl ca sog ggf ggfs evtl inkl exkl zzgl insb insbes einschl zzt
    p.ex c.-à-d env
""")
# A number must follow; else they are words that end a sentence.
_NUMBERED = _words("no nos nr art abs abb fig figs pp par ch sec tab kap bd vol anm ziff rn rz tel")
# They may end a sentence, and mostly don't.
_MAYBE = _words("""
    st ste mt ft jr sr inc ltd corp co bros dept gen col lt capt sgt maj gov sen pres univ ave blvd etc al eds chap
    jan feb apr jun jul aug sep sept oct nov dec okt dez janv févr avr juil déc
    usw usf ff chr geb gest gegr verh str mio mrd tsd std allg betr bzgl hrsg jh jhd kath röm engl frz amerik éd trad
""")
# They mostly begin a sentence, and are no part of names (Du Bois, Le Pen).
_BEGINNERS = _words("""
    A An The This That These Those It Its He His She Her We Our You Your They Their I My In On At By For From With As
    After Before But And Or So If When While What Where Who Why How There Here Then However Not No Yes Please Also Let
    Am Are Is Was Were Do Does Did Have Has Had Can Could Would Should Shall Thank Thanks Today Tomorrow Yesterday
    Der Die Das Den Dem Ein Eine Einen Einem Einer Es Er Sie Wir Ihr Ihre Ich Man Und Aber Oder Doch Denn Dann Danach
    Da Dort Hier Im Am Auf Aus Bei Mit Nach Vor Für Als Wenn Wie Wer Was Wo Warum Auch Nun Nicht Kein Keine Diese
    Dieser Dieses Mein Meine Sein Seine Unser Unsere Jedoch Während Nachdem Zum Zur Damit Deshalb Ja Nein Bitte Alle
    Les Un Une Il Elle Ils Elles Nous Vous Je Tu Ce Cet Cette Ces Ceci Cela Mais Et Ou Donc Car Dans En À Au Aux Pour
    Par Sur Avec Sans Quand Si Que Qui Comme Puis Alors Après Avant Son Sa Ses Mon Notre Votre Leur Oui Non
""")


# ---------------------------------------------------------------------------------------
# Parts of sentences


def shorten(piece: Piece, longest: int, count: Callable[[str], int]) -> list[Piece]:
    """A sentence in parts that ``count`` (of tokens, mostly) says are at most ``longest`` each; a single character is
    not cut. As long as a part is too long, it is halved at the best place near its middle: after ``;`` or ``:``, after
    ``,`` or a dash, at a space, anywhere.

    >>> [part.text for part in shorten(Piece("one two three, four five"), 3, lambda text: len(text.split()))]
    ['one two three,', 'four five']
    >>> shorten(Piece("aaaa", "\\n"), 2, len)
    [Piece(text='aa', after=''), Piece(text='aa', after='\\n')]
    """
    if len(piece.text) < 2 or count(piece.text) <= longest:
        return [piece]
    first, after = _middle(piece.text)
    halves = Piece(piece.text[:first], piece.text[first:after]), Piece(piece.text[after:], piece.after)
    return [part for half in halves for part in shorten(half, longest, count)]


def _middle(text: str) -> tuple[int, int]:
    """Where to cut a text in two: from where to where is between the halves. A sign does only if neither half has less
    than a quarter of the text."""
    half, quarter = len(text) // 2, len(text) // 4
    best = (3, 0, 0, 0)
    for place in _BETWEEN.finditer(text, 1):
        start, end = place.span()
        far, sign = abs(start - half), text[start - 1]
        rank = 2 if far > quarter else 0 if sign in ";:；：" else 1 if sign in ",，、،–—" else 2
        best = min(best, (rank, far, start, end))
    if best[0] < 3:
        return best[2:]
    at = next((i for i in range(half, len(text)) if unicodedata.category(text[i])[0] != "M"), half)
    return at, at


_BETWEEN = re.compile(r"(?<=\S)\s+(?=\S)|(?<=[，、；：])(?=\S)")

"""Texts in sentences and together again: nothing is ever lost, and a table of what is hard."""

# ruff: noqa: RUF001  the signs of other scripts are meant

import random
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard import recipe
from regard.data.sentences import Piece, ends_line, join, mark, shorten, split
from regard.data.tokenizer import Tokenizer

# Each is the sentences of one text, with a space between them.
HARD = [
    # plain
    ["Hello.", "How are you?", "Fine!", "And you?"],
    ["He left.", "\"Where to?\" she asked.", "\"Home.\"", "Then he was gone."],
    ["„Komm her!“, rief sie.", "Er kam.", "„Ja?“", "„Nein.“", "»Doch!«", "Sie ging."],
    ["Il dit : « Viens ! »", "Puis il part.", "« Où ? » demande-t-elle.", "Nulle part !"],
    ["(He had left.)", "It rained.", "[See below.]", "She stayed (alone).", "‘No.’", "“Yes.”", "End"],
    ["Really?!", "No way!!!", "Yes...", "What?", "– Nothing.", "— Komm!", "- Wohin?"],
    ["Is it 5?", "6 are left.", "42 is more.", "It cost $5.", "€6 is more.", "#1 won."],
    ["¿Qué?", "¡Nada!", "Это дом.", "Он большой.", "Τι;"],
    ["iPhones are phones. iPads are not."],  # small letters begin nothing
    ["so it goes. and on? and on! i think."],
    # titles, initials and other abbreviations
    ["Mr. Smith met Mrs. Jones, Ms. Lee and Dr. No at St. Paul's.", "They spoke to Prof. X."],
    ["J. K. Rowling and George W. Bush met J.R.R. Tolkien and J.-P. Sartre.", "W. E. B. Du Bois was there."],
    ["It was plan B.", "He liked it.", "It was vitamin C.", "The U.S. Army came at 5 p.m. Monday.", "It left at 6 a.m.", "We slept."],
    ["I left at 6 a.m.", "Did you see me?", "We met at 5 p.m.", "Can you come at 6 p.m. Friday?"],
    ["Use tools, e.g. Emacs or i.e. Vim, cf. Smith et al. Chicago.", "Apples, pears, etc. Bananas too.", "Apples, etc.", "They are good."],
    ["See No. 5, Fig. 3, Art. 7 and Vol. 2, pp. 3 and p. 4 there.", "No.", "I said no.", "People love art.", "Modern art."],
    ["Acme Inc. Chicago sued Foo Ltd. London in Jan. 1999.", "He works for Acme Inc.", "It is in Washington, D.C.", "In Oct. Paul came."],
    ["Das ist z. B. Hans, d. h. Herr Dr. Müller, bzw. Fr. Meier u. a. Leute.", "Er kommt i. d. R. Montags."],
    ["Das ist z.B. Hans, d.h. Hr. Müller.", "Äpfel, Birnen usw. Obst ist gesund.", "Äpfel usw.", "Die sind gesund."],
    ["Vgl. Abb. 3 und S. 5 in Bd. 2, Nr. 7, ca. 5 km.", "Dieser Art.", "Sog. Experten kamen ggf. Montag."],
    ["M. Dupont et Mme. Durand sont là, p. ex. Paul, c.-à-d. Pierre.", "M. Le Pen aussi.", "Il y a des pommes, etc.", "C'est bon."],
    ["L'article d'E. Zola est long.", "Elle l'a lu.", "C'était en janv. 1898."],
    ["Am 3. Mai kam er am 24. Dezember an.", "Im 19. Jahrhundert starb Ludwig XIV. König war er am 3. 5. 1680.", "Er wurde 3.", "Sie auch."],
    ["Das war 1984.", "Orwell schrieb es.", "Zum 100. Geburtstag kam Papst Johannes XXIII. Rom jubelte."],
    ["1. The first point.", "It is good."],
    ["a. Erster Punkt.", "IV. Vierter.", "Schluss."],
    # numbers, names and signs with points in them
    ["It is 3.5 or 1.000,00 or 1,000.00 or .5.", "Version 2.0.1 is out.", "It has 3.5.", "Nice."],
    ["See example.com or https://a.b/c.d?e=F.G now.", "Mail me@x.org.", "Yahoo!", "Node.js is JS."],
    ["The score was 3-2.", "Messi scored.", "It rose 5%.", "Prices fell."],
    ["Der Bus ist 12 m.", "Einige sind 300 000.", "Caesar starb 44 v. Chr. Rom trauerte.", "· Punkt."],
    # ellipses and remarks
    ["Well... maybe not.", "Well… perhaps.", "So he left...", "She stayed…", "... And then?", "… Nothing."],
    ["He said [...] The rest (?) Is silence (!) They say."],
    ["I don't.", "You can't.", "She isn't.", "It's Tom's."],
    ["Nice! 🙂", "See you! 🎉🎉", "Bye."],
    # scripts without case, and without spaces
    ["שלום. ", "מה שלומך?"],
    ["مرحبا.", "كيف حالك؟", "بخير."],
    ["नमस्ते।", "आप कैसे हैं?", "ठीक।"],
    ["안녕하세요.", "잘 지내요?", "응.", "봐.", "그래."],
    ["你好。", "再见！ ", "好吗？ ", "hello。 ", "world"],
]  # fmt: skip


@pytest.mark.parametrize("sentences", HARD, ids=lambda sentences: sentences[0][:24])
def test_hard_cases(sentences):
    sentences = [sentence.strip() for sentence in sentences]
    assert [piece.text for piece in split(" ".join(sentences))] == sentences
    assert [piece.text for piece in split("\n".join(sentences))] == sentences
    assert split("  ".join(sentences))[0].after in ("  ", "")


@pytest.mark.parametrize(
    "sentences",
    [
        ["你好。", "再见！", "他说：“走吧。”然后离开了。", "真的吗？？", "好。"],
        ["「行こう。」と言った。", "そうだね！", "「はい。」", "「いいえ。」"],
    ],
)
def test_wide_signs_need_no_space(sentences):
    assert [piece.text for piece in split("".join(sentences))] == sentences


def test_lines_and_what_is_between_them_are_kept():
    text = "  One. Two\t three.\r\n\r\n\n - Four\u2028five.  \n"
    assert split(text) == [
        Piece("", "  "),
        Piece("One.", " "),
        Piece("Two\t three.", "\r\n\r\n\n "),
        Piece("- Four", "\u2028"),
        Piece("five.", "  \n"),
    ]
    assert split("") == []
    assert split(" \n") == [Piece("", " \n")]


BITS = [
    ".", "...", "…", "!", "?", "。", "！", "」", "“", "”", '"', "«", "»", "(", ")", "[", "'", "’", " ", "  ", "\n", "\r\n", "\xa0", "\u2028",
    "\x1c", "\u3000", "Dr", "z", "B", "A", "The", "the", "3", "100", "XIV", "No", "etc", "l'", "e.g", "-", "—", ",", ";", "，", "🙂", "\u0301",
    "漢", "ß",
]  # fmt: skip
texts = st.lists(st.sampled_from(BITS) | st.text(max_size=3), max_size=23).map("".join)


@settings(max_examples=500, deadline=None)
@given(text=texts)
@example(text="。」 A")
@example(text="a. 。」B")
@example(text=" 。«0")
def test_nothing_is_lost(text):
    pieces = split(text)
    assert join(pieces) == text
    for i, piece in enumerate(pieces):
        assert piece.text or i == 0
        assert piece.text == piece.text.strip()
        assert not piece.after.strip()
        assert not re.search(r"[\n\r\u2028]", piece.text)
        assert [p.text for p in split(piece.text)][:1] == [piece.text][: len(piece.text)]  # what is split stays split


@pytest.mark.parametrize(
    ("line", "marked"),
    [
        ("# One", "# "),
        ("###### Six", "###### "),
        ("####### seven", ""),
        ("-\t– One", "-\t– "),
        ("* * *", "* * "),  # what is left of it has no words
        ("> 3) a) Yes", "> 3) a) "),
        ("-1 is less", ""),
        ("#1 won", ""),
        ("1.5 litres", ""),
        ("1984. A year", ""),
        ("J. K. Rowling", ""),
        ("- ", ""),
        ("-\nOne", ""),
        ("A - B", ""),
    ],
)
def test_marks_of_lines(line, marked):
    assert mark(line) == marked


def test_a_line_ends_where_one_does():
    assert [ends_line(after) for after in ("", " ", "\t", "\n", " \r\n ", "\u2028")] == [False] * 3 + [True] * 3


# ---------------------------------------------------------------------------------------
# Parts


def words(text: str) -> int:
    return len(text.split())


@settings(max_examples=300, deadline=None)
@given(text=texts, after=st.sampled_from(["", "\n"]), longest=st.integers(0, 11))
def test_parts_are_short_and_nothing_is_lost(text, after, longest):
    for count in (len, words, lambda text: len(text.encode())):
        parts = shorten(Piece(text, after), longest, count)
        assert join(parts) == text + after
        assert all(part.text for part in parts) or not text
        assert all(count(part.text) <= longest or len(part.text) == 1 for part in parts)
        assert all(not part.after.strip() for part in parts[:-1])
        if count(text) <= longest:
            assert parts == [Piece(text, after)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a b c, d e f; g h i", ["a b c, d e f;", "g h i"]),
        ("a b c d, e f g h i", ["a b c d,", "e f g h i"]),
        ("a b c – d e f g h", ["a b c –", "d e f g h"]),
        ("a, b c d e f g h i j", ["a, b c d e", "f g h i j"]),  # the comma is too far from the middle
        ("a b c d e f g h", ["a b c d", "e f g h"]),
        ("a b 1,000 c d 2;5 e", ["a b 1,000", "c d 2;5 e"]),
        ("x " + "y" * 31 + " z z z z z", ["x " + "y" * 31, "z z z z z"]),  # no word is cut where there is a space
    ],
)
def test_the_best_place_is_taken(text, parts):
    assert [part.text for part in shorten(Piece(text), words(text) - 1, words)] == parts


def test_without_spaces_signs_do_and_then_anything_but_marks():
    assert [p.text for p in shorten(Piece("一二三四，五六七"), 5, len)] == ["一二三四，", "五六七"]
    assert [p.text for p in shorten(Piece("一二三四五六"), 5, len)] == ["一二三", "四五六"]
    assert [p.text for p in shorten(Piece("aae\u0301\u0301a"), 5, len)] == ["aae\u0301\u0301", "a"]


def test_a_very_long_line_takes_few_counts():
    draw = random.Random(1)
    line = " ".join(
        "".join(draw.choices("abcde", k=draw.randint(1, 9))) + draw.choice(["", "", ","]) for _ in range(5003)
    )
    counted = 0

    def count(text: str) -> int:
        nonlocal counted
        counted += len(text)
        return words(text)

    parts = shorten(Piece(line), 97, count)
    assert join(parts) == line
    assert max(words(part.text) for part in parts) <= 97
    assert len(parts) < 3 * 5003 / 97
    assert counted < 12 * len(line)


def test_with_a_tokenizer():
    text = "Two young males, near many bushes: several men in hard hats 漢字漢字漢字漢字 are operating a giant pulley system."
    mine = Tokenizer.train([text] * 3, recipe.Tokenizer(vocab_size=307))

    def count(text: str) -> int:
        return len(mine.encode(text))

    parts = shorten(Piece(text), 23, count)
    assert join(parts) == text
    assert max(count(part.text) for part in parts) <= 23
    assert parts[0].text == "Two young males,"

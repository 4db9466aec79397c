"""Text comes back from its ids; nothing is unknown; what is fast gives the same ids as what is slow."""

import itertools
import json
import re
import unicodedata

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from regard import recipe
from regard.data.tokenizer import Characters, Packer, Tokenizer, cut
from regard.schema import InputError, RegardError

TEXT = [
    "Two young, White males are outside near many bushes (1984).",
    "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
    "Several men in hard hats are operating a giant pulley system,\nand 12345 more <pad> are not.",
    "Mehrere Männer mit Schutzhelmen bedienen ein Antriebsradsystem. ёлка, йод </s> <0x41> ▁",
] * 3
CONFIGS = [
    recipe.Tokenizer(kind=kind, normalise=form, lowercase=lower, vocab_size=389)
    for kind, form, lower in itertools.product(("bpe", "characters", "bytes"), ("none", "nfc", "nfkc"), (False, True))
]
NAMES = [f"{c.kind}-{c.normalise}{'-lower' if c.lowercase else ''}" for c in CONFIGS]
HARD = [
    "<pad>", "<s>", "</s>", "<mask>", "<0x41>", "▁", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\0", "\x1c", "\x85", "\xa0", "\u2028",
    "é", "e\u0301", "\u0301", "\xb4", "İ", "Σ", "ﬁ", "ẛ̣", "Ω", "한", "\u1112\u1161\u11ab", "🙂", "👩\u200d👩\u200d👧", "漢字", "\U0010ffff",
    "12345", "men", "Männer", "...", "(", "don't",
]  # fmt: skip
texts = st.lists(st.text(max_size=7) | st.sampled_from(HARD), max_size=11).map("".join)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Each configuration's tokenizer, as learned and as loaded again."""
    found = {}
    for config, name in zip(CONFIGS, NAMES, strict=True):
        path = tmp_path_factory.mktemp("tokenizers") / f"{name}.json"
        learned = Tokenizer.train(TEXT, config)
        learned.save(path)
        found[name] = config, learned, Tokenizer.load(path)
    return found


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(text=texts)
@example(text="".join(HARD))
@example(text=" ".join(HARD))
@example(text="  <pad> a</s>\n\n b  \n")
def test_decoding_gives_back_the_text(trained, name, text):
    config, learned, loaded = trained[name]
    ids = learned.encode(text)
    plain = learned.normalise(text)
    assert learned.decode(ids) == plain
    assert (loaded.encode(text), loaded.decode(ids), loaded.normalise(text)) == (ids, plain, plain)
    assert not set(ids) & {learned.pad, learned.start, learned.end, learned.mask}
    if config.normalise == "none" and not config.lowercase:
        assert plain == text
    elif config.normalise != "none" and all(unicodedata.ucd_3_2_0.category(c) != "Cn" for c in text):
        # Of characters newer than that, the library's table may not know what Python's does.
        assert unicodedata.is_normalized(config.normalise.upper(), plain)
        if not config.lowercase:
            assert plain == unicodedata.normalize(config.normalise.upper(), text)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=100, deadline=None)
@given(text=texts, size=st.integers(1, 23))
@example(text="a b\nc  d \n e\n\nf", size=1)
def test_a_text_in_parts_has_the_same_ids(trained, name, text, size):
    _, tokenizer, _ = trained[name]
    parts = list(cut(tokenizer.open(text), size))
    assert "".join(parts) == tokenizer.open(text)
    assert [*itertools.chain(*tokenizer.encode_parts(parts))] == tokenizer.encode(text)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=100, deadline=None)
@given(batch=st.lists(texts, max_size=5))
@example(batch=["a dog runs", "a dog\nruns\n\nfar", " a", "a ", "", "a  b", "men\n", "\nmen"])
def test_packing_gives_the_same_ids(trained, name, batch):
    _, tokenizer, _ = trained[name]
    pack = Packer(tokenizer)
    rows = [np.frombuffer(row, pack.dtype).tolist() for row in pack(batch)]
    assert rows == tokenizer.encode_batch(batch)
    assert pack.tokens == sum(map(len, rows))
    begins = [part == 0 for text in batch for part, _ in enumerate(cut(tokenizer.open(text), 3))]
    # As the reader of documents does it: only the first part is opened by the packer.
    parts = [
        text[i == 0 and len(tokenizer.open("x")) - 1 :]
        for b in batch
        for i, text in enumerate(cut(tokenizer.open(b), 3))
    ]
    assert b"".join(pack(parts, begins)) == b"".join(pack(batch))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=50, deadline=None)
@given(words=st.lists(texts.map(lambda t: "".join(t.split())).filter(bool), min_size=1, max_size=5))
def test_words_one_by_one_are_the_text(trained, name, words):
    _, tokenizer, _ = trained[name]
    ids = tokenizer.encode_words(words)
    assert len(ids) == len(words)
    assert all(ids)
    assert [*itertools.chain(*ids)] == tokenizer.encode(" ".join(words))


def test_the_vocabulary_has_the_size_and_order_that_is_declared(trained):
    sizes = {name: len(learned) for name, (_, learned, _) in trained.items()}
    assert {size for name, size in sizes.items() if name.startswith("bpe")} == {389}
    assert {size for name, size in sizes.items() if name.startswith("bytes")} == {4 + 256}
    alphabet = set("".join(TEXT))
    assert sizes["characters-none"] == 4 + 256 + len(alphabet)
    for _, learned, _ in trained.values():
        assert [learned.token(i) for i in (0, 1, 2, 3, 4, 259)] == [
            "<pad>",
            "<s>",
            "</s>",
            "<mask>",
            "<0x00>",
            "<0xFF>",
        ]
        assert (learned.pad, learned.start, learned.end, learned.mask) == (0, 1, 2, 3)
        assert learned.byte_ids == list(range(4, 260))


def test_words_carry_their_space_and_numbers_have_three_digits(trained):
    _, tokenizer, _ = trained["bpe-nfc"]
    shown = [tokenizer.token(id) for id in tokenizer.encode("Männer are 12345,\nmen")]
    assert shown[:2] == ["▁Männer", "▁are"]
    assert "".join(shown) == "▁Männer▁are▁12345,\\nmen"
    assert all(len(token.strip("▁")) <= 3 for token in shown if any(c.isdigit() for c in token))


def test_learning_is_repeatable(trained):
    for config, learned, _ in trained.values():
        assert Tokenizer.train(TEXT, config)._inner.to_str() == learned._inner.to_str()
        assert Tokenizer.train((t for t in TEXT), config)._inner.to_str() == learned._inner.to_str()


def test_rare_characters_are_left_to_bytes():
    config = recipe.Tokenizer(kind="characters")
    characters = Characters(config)
    characters.add(["ab" * 10_007, "é", "e\u0301"])
    assert sorted(characters.common()) == ["a", "b"]
    tokenizer = Tokenizer.train([], config, characters)
    assert tokenizer.encode("aé") == [260, 4 + 0xC3, 4 + 0xA9]
    assert tokenizer.decode(tokenizer.encode("aé")) == "aé"
    assert characters.counts[ord("é")] == 2  # one of them was two characters
    assert characters.counts[ord("\n")] == 0  # none between the texts


def test_learning_takes_less_where_words_hardly_recur():
    plain, unspaced = Characters(recipe.Tokenizer()), Characters(recipe.Tokenizer())
    draw = np.random.default_rng(3)
    for _ in range(8):
        plain.add(["the dog and the cat " * 50_021])
        unspaced.add(["".join(map(chr, draw.integers(0x4E00, 0x5E00, 1_000_003)))])
    assert plain.sample == 1
    assert unspaced.sample == 2


def test_a_vocabulary_that_the_text_cannot_fill():
    text = ["Zwei junge Männer, zwei alte Männer und zwei Männer mittleren Alters"] * 2
    with pytest.raises(InputError) as error:
        Tokenizer.train(text, recipe.Tokenizer(vocab_size=997))
    found = re.fullmatch(r"vocab_size \(997\): the text supports at most (\d+); choose that or less", str(error.value))
    most = int(found[1])
    assert len(Tokenizer.train(text, recipe.Tokenizer(vocab_size=most))) == most
    with pytest.raises(InputError):
        Tokenizer.train(text, recipe.Tokenizer(vocab_size=most + 1))


def test_a_text_too_small_for_any_subwords():
    with pytest.raises(InputError) as error:
        Tokenizer.train(["ab"], recipe.Tokenizer(vocab_size=997))
    assert str(error.value) == 'vocab_size (997): the text supports at most 263; choose kind = "characters"'


def test_saving_is_whole_or_not_at_all(trained, tmp_path, monkeypatch):
    _, tokenizer, _ = trained["bytes-nfc"]
    tokenizer.save(tmp_path / "tokenizer.json")
    before = (tmp_path / "tokenizer.json").read_text()
    monkeypatch.setattr("regard.files.flush", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(RegardError, match=r"tokenizer\.json: cannot be written \(No space\)"):
        trained["bpe-nfc"][1].save(tmp_path / "tokenizer.json")
    assert (tmp_path / "tokenizer.json").read_text() == before


# -- tokenizers from elsewhere ------------------------------------------------------------


def bert():
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "run", "##s", "."]
    inner = tokenizers.Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.enable_truncation(3)
    inner.enable_padding()
    return inner


def gpt2():
    names = ["<|endoftext|>", *pre_tokenizers.ByteLevel.alphabet(), "do", "dog", "Ġdog"]
    merges = [("d", "o"), ("do", "g"), ("Ġ", "dog")]
    inner = tokenizers.Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|endoftext|>"])
    return inner


def llama():
    names = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "d", "o", "g", "do", "dog", "▁dog"]
    merges = [("d", "o"), ("do", "g"), ("▁", "dog")]
    inner = tokenizers.Tokenizer(
        models.BPE({n: i for i, n in enumerate(names)}, merges, byte_fallback=True, unk_token="<unk>")
    )
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(back)
    return inner


@pytest.mark.parametrize("make", [bert, gpt2, llama])
def test_tokenizers_from_elsewhere(make, tmp_path):
    make().save(str(tmp_path / "theirs.json"))
    theirs = Tokenizer.load(tmp_path / "theirs.json")
    before, special = make().get_vocab_size(), [theirs.pad, theirs.start, theirs.end, theirs.mask]
    assert len(set(special)) == 4
    assert (special, len(theirs)) == {
        bert: ([0, 2, 3, 4], before),
        gpt2: ([before, before + 1, 0, before + 2], before + 3),
        llama: ([before, 1, 2, before + 1], before + 2),
    }[make]
    ids = theirs.encode("a dog . <pad> dog dog")
    assert not set(ids) & set(special)
    assert len(ids) > 3  # not cut to their length
    assert theirs.decode([theirs.start, *theirs.encode("dog dog"), theirs.end, theirs.pad]) == "dog dog"
    assert [*itertools.chain(*theirs.encode_words(["dog", "dog"]))] == theirs.encode("dog dog")
    assert theirs.encode_batch(["dog", "", "dog dog"]) == [theirs.encode("dog"), [], theirs.encode("dog dog")]
    assert [theirs.token(id) for id in theirs.encode("dog dog")][1] == ("dog" if make is bert else "▁dog")
    theirs.save(tmp_path / "ours.json")
    again = Tokenizer.load(tmp_path / "ours.json")
    assert [again.pad, again.start, again.end, again.mask, len(again)] == [*special, len(theirs)]


def test_a_long_text_from_elsewhere_is_cut_between_words(tmp_path):
    gpt2().save(str(tmp_path / "theirs.json"))
    theirs = Tokenizer.load(tmp_path / "theirs.json")
    ids = theirs.encode("dog " * 300_007 + "dog")
    assert len(ids) == 300_008
    assert set(ids[1:]) == set(theirs.encode(" dog"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "not a tokenizer.json ("),
        (b"no", "not a tokenizer.json ("),
        (b"\xff", "not a tokenizer.json (not valid UTF-8)"),
        (None, "cannot be read (No such file or directory)"),
    ],
)
def test_what_is_no_tokenizer_is_one_line(content, message, tmp_path):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as error:
        Tokenizer.load(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert len(str(error.value).splitlines()) == 1


def test_what_cannot_be_encoded_is_one_line(trained, tmp_path):
    with pytest.raises(InputError, match=r"^the text has half of a surrogate pair, which is no character$"):
        trained["bpe-nfc"][1].encode("\ud83d")
    names = {"a": 0, "dog": 1}
    theirs = tokenizers.Tokenizer(models.WordLevel(names, unk_token="[UNK]"))
    theirs.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    theirs.save(str(tmp_path / "theirs.json"))
    with pytest.raises(InputError, match=r"^the tokenizer cannot encode the text \(.*UNK.*\)$"):
        Tokenizer.load(tmp_path / "theirs.json").encode("a cat")


def test_a_tokenizer_of_ours_can_be_used_by_others(trained, tmp_path):
    """The file alone, in the library alone, does what ours does: the first space is in it."""
    _, ours, _ = trained["bpe-nfc"]
    ours.save(tmp_path / "tokenizer.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "Two Männer, e\u0301."
    assert theirs.encode(text, add_special_tokens=False).ids == ours.encode(text)
    assert theirs.decode(ours.encode(text)) == ours.normalise(text)
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["byte_fallback"] is True


def test_the_space_before_a_word_is_a_token_in_a_text_without_spaces():
    texts = [a + b for a in ("vier", "fünf", "sieben", "acht") for b in ("zig", "tausend", "hundert")] * 3
    tokenizer = Tokenizer.train(texts, recipe.Tokenizer(vocab_size=300))
    ids = tokenizer.encode("viertausend")
    assert not set(ids) & set(tokenizer.byte_ids)
    assert tokenizer.decode(ids) == "viertausend"

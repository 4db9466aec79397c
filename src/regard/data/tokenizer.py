"""Text to ids and back, over the ``tokenizers`` library.

Our own tokenizers are one model in three sizes: byte-pair merges (Sennrich et al. 2016) over the characters of the text
(``bpe``), its characters alone (``characters``), or nothing (``bytes``). Whatever has no token of its own becomes the
bytes of its UTF-8 form, so nothing is unknown and text comes back as it was, up to the declared normalisation. Spaces
stay spaces: a word carries the one before it, and ``bpe`` puts one before the first, which decoding takes away again.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from regard import recipe
from regard.files import write_text
from regard.schema import InputError, read_json

SPECIAL = {  # the first name of each is ours; a tokenizer from elsewhere may have one of the others
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>", "[pad]"),
    "start": ("<s>", "[CLS]", "<bos>", "[BOS]", "<|startoftext|>", "<|begin_of_text|>", "[cls]"),
    "end": ("</s>", "[SEP]", "<eos>", "[EOS]", "<|endoftext|>", "<|end_of_text|>", "[sep]"),
    "mask": ("<mask>", "[MASK]", "<|mask|>", "[mask]"),
}
NAMES = ".special.json"  # the end of the name of the file that names them
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
ENOUGH = 100_000_000  # characters to learn a tokenizer from
ENOUGH_RARE = 5_000_000  # where words hardly recur; about 200 bytes of memory each
COVERAGE = 0.9999  # of the text's characters have a token of their own; the rarest are left to bytes

# Words, numbers up to three digits and runs of signs, each with the space before it; line ends; other spaces.
WORDS = r"[\r\n]+| ?[\p{L}\p{M}]+| ?\p{N}{1,3}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"

# Between two words: here a text can be cut, and both sides normalise and split as they would together.
BETWEEN = re.compile(r"(?<=\S)(?=(?: |\n+)\S)")
LINE_ENDS = re.compile(r"\n+")


@lru_cache(10_000)
def script(letter: str) -> str:
    """What a letter is of, by the first word of its name.

    >>> script("a"), script("ж"), script("7")
    ('LATIN', 'CYRILLIC', 'DIGIT')
    """
    return unicodedata.name(letter, "").partition(" ")[0]


class Tokenizer:
    """Ids for text, and four special ones: ``pad``, ``start``, ``end`` and ``mask``.

    >>> mine = Tokenizer.train(["a dog runs"], recipe.Tokenizer(kind="bytes"))
    >>> mine.encode("dog"), mine.decode([104, 115, 107]), len(mine)
    ([104, 115, 107], 'dog', 260)
    >>> mine.pad, mine.start, mine.end, mine.mask
    (0, 1, 2, 3)
    """

    pad: int
    start: int
    end: int
    mask: int

    def __init__(self, inner: tokenizers.Tokenizer, special: Mapping[str, str | None] | None = None):
        """``special`` has the names of the special tokens, where a model that is there already has taken them as they
        are: none is added, and for one that it lacks another stands in. Left out, they are found by their customary
        names, and those that are missing are added."""
        self.special = None if special is None else dict(special)
        self.lacks = self._find_special(inner)  # the roles that another token stands in for
        inner.no_padding()
        inner.no_truncation()
        inner.encode_special_tokens = True  # "<pad>" in a text is text
        self._inner = self._encoder = inner
        self._size = 1 + max(inner.get_vocab(with_added_tokens=True).values())

        state = json.loads(inner.to_str())
        steps = (state["normalizer"] or {}).get("normalizers", [])
        pattern = (state["pre_tokenizer"] or {}).get("pattern")
        self.splits_words = steps[-1:] == [_PREPEND] and pattern == {"Regex": WORDS}
        self._prefix = " " if self.splits_words else ""
        if self.splits_words:  # put the first space there ourselves: the rest of a text that was cut has none
            self._encoder = tokenizers.Tokenizer.from_str(
                json.dumps({**state, "normalizer": {**state["normalizer"], "normalizers": steps[:-1]}})
            )
            self._encoder.encode_special_tokens = True
        self.words_stand_alone = self.encode("a a") == 2 * self.encode("a")

    def _find_special(self, inner: tokenizers.Tokenizer) -> frozenset[str]:
        given, found = self.special, dict[str, int]()
        there = {token.content for token in inner.get_added_tokens_decoder().values() if token.special}
        for role, names in SPECIAL.items():
            name = next((name for name in names if inner.token_to_id(name) is not None), names[0])
            if given is not None:
                if (name := given.get(role)) is None:
                    continue
                if inner.token_to_id(name) is None:
                    raise InputError(f"special token {name!r} ({role}) is not in the tokenizer's vocabulary")
            if name not in there:
                inner.add_special_tokens([AddedToken(name, special=True, normalized=False)])
            found[role] = inner.token_to_id(name)  # type: ignore[assignment]
        stand_ins = {"mask": ("pad", "start", "end")}  # a text ends where the next begins (GPT-2)
        for role in SPECIAL:
            others = (found[other] for other in stand_ins.get(role, ("end", "start", "pad")) if other in found)
            setattr(self, role, found.get(role, next(others, 0)))
        return frozenset(SPECIAL.keys() - found.keys())

    # -- where tokenizers come from and go to ---------------------------------------------

    @classmethod
    def train(cls, texts: Iterable[str], config: recipe.Tokenizer, characters: Characters | None = None) -> Tokenizer:
        """Learn one from text. ``characters`` counts those of the text, where that is known; then ``texts`` is gone
        through once, and may be a part of it.

        >>> len(Tokenizer.train(["aab"], recipe.Tokenizer(kind="characters")))
        262
        """
        if config.kind == "bytes":
            return cls(_build([], [], config))
        if characters is None:
            texts = list(texts)
            characters = Characters(config)
            characters.add(texts)
        if config.kind == "characters":
            return cls(_build(sorted(characters.common()), [], config))

        room = config.vocab_size - len(SPECIAL) - len(BYTES)
        # The space that every word begins with is there even where the text has none.
        alphabet = [*dict.fromkeys([" ", *characters.common()])][:room]
        trainer = trainers.BpeTrainer(
            vocab_size=room,
            min_frequency=2,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        learner = _build([], [], config)
        learner.train_from_iterator(texts, trainer)
        model = json.loads(learner.to_str())["model"]
        most = len(model["vocab"]) + len(SPECIAL) + len(BYTES)
        if most < config.vocab_size:
            possible = not any(config.replace(vocab_size=most).problems())
            way_out = "choose that or less" if possible else 'choose kind = "characters"'
            raise InputError(f"vocab_size ({config.vocab_size}): the text supports at most {most}; {way_out}")
        return cls(_build(sorted(alphabet), model["merges"], config))

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Any tokenizer.json. Its special tokens are found by their customary names, and those it lacks are added,
        unless ``save`` wrote a second file that names them.

        >>> Tokenizer.load("nowhere.json")
        Traceback (most recent call last):
        regard.schema.InputError: nowhere.json: cannot be read (No such file or directory)
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        except UnicodeDecodeError:
            raise InputError(f"{path}: not a tokenizer.json (not valid UTF-8)") from None
        try:
            inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing more precise
            raise InputError(f"{path}: not a tokenizer.json ({error})") from None
        special = Path(path).with_suffix(NAMES)
        return cls(inner, read_json(special) if special.exists() else None)

    def save(self, path: str | Path) -> None:
        """Write a tokenizer.json, whole or not at all; beside it, where they were given, what its special tokens are
        called (tokenizer.special.json)."""
        path = Path(path)
        if self.special is not None:
            write_text(path.with_suffix(NAMES), json.dumps(self.special, ensure_ascii=False))
        write_text(path, self.to_json())

    def to_json(self) -> str:
        """What is in a tokenizer.json."""
        return self._inner.to_str(pretty=True)

    def same_as(self, other: Tokenizer) -> bool:
        """Whether another one gives the same ids to the same texts, and to the same special tokens.

        >>> mine, yours = (Tokenizer.train([], recipe.Tokenizer(kind="bytes")) for _ in range(2))
        >>> mine.same_as(yours)
        True
        """
        roles = all(getattr(self, role) == getattr(other, role) for role in SPECIAL)
        return roles and self._inner.to_str() == other._inner.to_str()

    # -- text and ids ----------------------------------------------------------------------

    def __len__(self) -> int:
        return self._size

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text, without special tokens, on all cores."""
        parts = [[*cut(self.open(text), _LONGEST)] for text in texts]
        encoded = iter(self.encode_parts([part for row in parts for part in row]))
        return [[id for _ in row for id in next(encoded)] for row in parts]

    def encode_words(self, words: list[str]) -> list[list[int]]:
        """The ids of each word of a sentence; one after another, they are those of the words with spaces between.

        >>> Tokenizer.train([], recipe.Tokenizer(kind="bytes")).encode_words(["a", "b"])
        [[101], [36, 102]]
        """
        space = "" if self.words_stand_alone else " "
        return self.encode_batch([space * (i > 0) + word for i, word in enumerate(words)])

    def surroundings(self) -> tuple[list[int], list[int]]:
        """The special ids that the tokenizer's own file puts before a text and after it.

        >>> Tokenizer.train([], recipe.Tokenizer(kind="bytes")).surroundings()
        ([], [])
        """
        bare, whole = (self._inner.encode("a", add_special_tokens=added).ids for added in (False, True))
        n = len(bare)
        at = next((i for i in range(len(whole) - n + 1) if whole[i : i + n] == bare), 0)
        return whole[:at], whole[at + n :]

    def between(self) -> list[int]:
        """What it puts between two texts beside the end of the first: RoBERTa has another end there.

        >>> Tokenizer.train([], recipe.Tokenizer(kind="bytes")).between()
        []
        """
        before, after = self.surroundings()
        n, pair = len(self._inner.encode("a", add_special_tokens=False).ids), self._inner.encode("a", "a").ids
        return pair[len(before) + n + len(after) : len(pair) - n - len(after)]

    def open(self, text: str) -> str:
        """A text as ``encode_parts`` takes it, and as ``cut`` cuts it."""
        return self._prefix + text if text else text

    def encode_parts(self, parts: list[str]) -> list[list[int]]:
        """The ids of each part of texts that were opened and cut; together they are those of the texts."""
        try:
            return [e.ids for e in self._encoder.encode_batch_fast(parts, add_special_tokens=False)]
        except TypeError:  # the library's way to say that it is not Unicode
            raise InputError("the text has half of a surrogate pair, which is no character") from None
        except Exception as error:  # a tokenizer from elsewhere may know a word neither whole nor in parts
            raise InputError(f"the tokenizer cannot encode the text ({str(error).splitlines()[0]})") from None

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; special tokens are skipped. For our own, ``decode(encode(x)) == normalise(x)``."""
        return self._inner.decode([int(id) for id in ids], skip_special_tokens=True)

    def normalise(self, text: str) -> str:
        """A text as it comes back: in the declared Unicode form and case."""
        normaliser = self._encoder.normalizer
        return text if normaliser is None else normaliser.normalize_str(text)

    def piece(self, id: int, *, first: bool = False) -> bytes:
        """What one token adds to a text, in UTF-8: a character may be spread over several. Special ones add nothing;
        the first of a text may add less than it would later.

        >>> mine = Tokenizer.train(["dog dog"], recipe.Tokenizer(vocab_size=266))
        >>> [id] = mine.encode_words(["dog", "d"])[1]
        >>> mine.piece(id), mine.piece(id, first=True)
        (b' d', b'd')
        """
        if (id, first) not in self._pieces:
            self._pieces[id, first] = self._piece(id, first)
        return self._pieces[id, first]

    @cached_property
    def _pieces(self) -> dict[tuple[int, bool], bytes]:
        return {}

    def _piece(self, id: int, first: bool) -> bytes:
        name, added = self._inner.id_to_token(id), self._inner.get_added_tokens_decoder()
        if name is None or (id in added and added[id].special):
            return b""
        if isinstance(self._inner.decoder, decoders.ByteLevel) and id not in added:
            return bytes(_BYTE_OF[letter] for letter in name if letter in _BYTE_OF)
        if id in self.byte_ids:
            return bytes([BYTES.index(name)])
        before = [] if first else self.encode("a")[-1:]
        base, both = self.decode(before), self.decode([*before, id])
        return (both[len(base) :] if both.startswith(base) else self.decode([id])).encode()

    @cached_property
    def special_ids(self) -> dict[str, int]:
        """Every special token by its name, those between the turns of a chat among them."""
        return {token.content: id for id, token in self._inner.get_added_tokens_decoder().items() if token.special}

    # -- for people --------------------------------------------------------------------------

    def token(self, id: int) -> str:
        """One token to look at: spaces as ▁, what cannot be printed escaped.

        >>> Tokenizer.train([" \\n"], recipe.Tokenizer(kind="characters")).token(260)
        '\\\\n'
        """
        name = self._inner.id_to_token(id)
        if name is None:
            return f"<{id}>"
        if isinstance(self._inner.decoder, decoders.ByteLevel) and id not in self._inner.get_added_tokens_decoder():
            text = self._inner.decoder.decode([name])
            name = name if "\ufffd" in text else text
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name.replace(" ", "▁"))

    @cached_property
    def byte_ids(self) -> list[int]:
        """The ids of the tokens that stand for one byte each, where there are such."""
        return [id for name in BYTES if (id := self._inner.token_to_id(name)) is not None]

    @cached_property
    def strange_ids(self) -> frozenset[int]:
        """The ids of what has no token of its own: bytes, unless there is nothing else.

        >>> [len(Tokenizer.train(["a"], recipe.Tokenizer(kind=kind)).strange_ids) for kind in ("characters", "bytes")]
        [256, 0]
        """
        all_ = len(self.byte_ids) + len(self._inner.get_added_tokens_decoder())
        return frozenset(self.byte_ids if all_ < len(self) else ())

    @cached_property
    def joined(self) -> frozenset[str]:
        """The characters that stand in tokens of several: what it has met often. None, where it joins none.

        >>> sorted(Tokenizer.train(["dog dog \u0434"], recipe.Tokenizer(vocab_size=267)).joined)
        [' ', 'd', 'g', 'o']
        """
        plain = (self.piece(id).decode(errors="ignore") for id in range(len(self)) if id not in self.strange_ids)
        return frozenset("".join(text for text in plain if len(text) > 1))

    @cached_property
    def scripts(self) -> frozenset[str]:
        """The scripts of the letters that it has met often.

        >>> sorted(Tokenizer.train(["dog dog \u0434"], recipe.Tokenizer(vocab_size=267)).scripts)
        ['LATIN']
        """
        return frozenset(script(c) for c in self.joined if c.isalnum())

    @cached_property
    def parents(self) -> np.ndarray:
        """The two tokens that each token is the merge of, (V, 2); -1 for what is no merge: characters, bytes, special
        tokens, and all of a tokenizer that does not merge.

        >>> mine = Tokenizer.train(["dog dog"], recipe.Tokenizer(vocab_size=266))
        >>> [[mine.token(id) for id in pair] for pair in mine.parents.tolist() if pair[0] >= 0]
        [['▁', 'd'], ['o', 'g']]
        """
        model = json.loads(self._inner.to_str())["model"]
        ids, prefix = model["vocab"], model.get("continuing_subword_prefix") or ""
        table = np.full((len(self), 2), -1, np.int64)
        for first, second in reversed(model.get("merges", [])):  # of several ways to a token, the earliest is taken
            table[ids[first + second.removeprefix(prefix)]] = ids[first], ids[second]
        table[[*self.byte_ids, *self._inner.get_added_tokens_decoder()]] = -1
        return table


def cut(text: str, size: int) -> Iterator[str]:
    """A text in parts of about ``size`` characters, each but the first beginning with the space or line ends before a
    word.

    >>> list(cut(" a dog runs\\non", 3))
    [' a dog', ' runs', '\\non']
    """
    start = 0
    while len(text) - start > size and (found := BETWEEN.search(text, start + size)):
        yield text[start : found.start()]
        start = found.start()
    yield text[start:]


class Packer:
    """Many texts to ids, as bytes: much faster than ``encode_batch``, as words that came before are looked up.

    >>> pack = Packer(Tokenizer.train(["a b"], recipe.Tokenizer(kind="bytes")))
    >>> np.frombuffer(pack(["a b"])[0], pack.dtype).tolist()
    [101, 36, 102]
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.dtype = np.dtype("<u2" if len(tokenizer) <= 2**16 else "<u4")
        self.tokens = self.words = 0
        self._known = _Known(self)

    def __call__(self, texts: Sequence[str], begins: Sequence[bool] | None = None) -> list[bytes]:
        """The ids of each text; one that does not begin is the part that ``cut`` left of the text before."""
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        size = _SHORT if self.tokenizer.splits_words else _LONGEST
        rows: list[list[bytes]] = []
        odd: list[tuple[list[bytes], int, str]] = []  # parts that cannot be looked up, and where they belong
        for i, text in enumerate(texts):
            row: list[bytes] = []
            for part in cut(self.tokenizer.open(text) if begins is None or begins[i] else text, size):
                words = self._split(part)
                if not words:
                    odd.append((row, len(row), part))
                row.append(b"".join(map(self._known.__getitem__, words)))
            rows.append(row)
        for (row, place, _), ids in zip(odd, self.tokenizer.encode_parts([part for *_, part in odd]), strict=True):
            row[place] = self.pack(ids)
        packed = [row[0] if len(row) == 1 else b"".join(row) for row in rows]
        self.tokens += sum(map(len, packed)) // self.dtype.itemsize
        return packed

    def pack(self, ids: Sequence[int]) -> bytes:
        return np.array(ids, self.dtype).tobytes()

    def words_of(self, words: list[str]) -> list[list[int]]:
        """The ids of each word of a sentence."""
        ids = self.tokenizer.encode_words(words)
        self.words += len(words)
        self.tokens += sum(map(len, ids))
        return ids

    def _split(self, part: str) -> list[str]:
        """The words of a part, each with the line ends before it, if nothing else but single spaces is between them;
        else none."""
        bare = part.split()
        self.words += len(bare)
        if not self.tokenizer.splits_words:
            return []
        if "\n" not in part:
            words = part[1:].split(" ")
            return words if words == bare else []
        words = LINE_ENDS.sub(r" \g<0>", part)[1:].split(" ")
        return words if [word.lstrip("\n") for word in words] == bare else []


class _Known(dict[str, bytes]):
    """The packed ids of every word that has come so far."""

    def __init__(self, packer: Packer):
        self.packer = packer

    def __missing__(self, word: str) -> bytes:
        (ids,) = self.packer.tokenizer.encode_parts([word if word.startswith("\n") else f" {word}"])
        self[word] = self.packer.pack(ids)
        return self[word]


class Characters:
    """How often each character occurs in a text, normalised as a tokenizer will."""

    def __init__(self, config: recipe.Tokenizer):
        self.config, self.counts = config, np.zeros(0x110000, np.int64)
        self.in_rare_words, self._n_added = 0, 0

    def add(self, texts: Sequence[str]) -> None:
        text = "\n".join(texts)  # faster than one by one
        if self._n_added % 8 == 0:  # an estimate will do
            words = set(text.split())
            if sum(map(len, words)) > len(text) / 2:
                self.in_rare_words += 8 * len(text)
        self._n_added += 1
        if self.config.normalise != "none":
            text = unicodedata.normalize("NFC" if self.config.normalise == "nfc" else "NFKC", text)
        if self.config.lowercase:
            text = text.lower()
        codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
        self.counts += np.bincount(codes, minlength=len(self.counts))
        self.counts[ord("\n")] -= max(len(texts) - 1, 0)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def sample(self) -> int:
        """A tokenizer is to be learned from one text in so many.

        Time goes with the length of the text, memory with that of its different words: much where words hardly recur,
        as in scripts without spaces.
        """
        return max(1, math.ceil(self.total / ENOUGH), math.ceil(self.in_rare_words / ENOUGH_RARE))

    def common(self) -> list[str]:
        """The most frequent characters, that make up nearly all of the text; the most frequent first.

        >>> characters = Characters(recipe.Tokenizer())
        >>> characters.add(["abbccc"])
        >>> characters.common()
        ['c', 'b', 'a']
        """
        occurring = np.flatnonzero(self.counts)
        order = occurring[np.argsort(-self.counts[occurring], kind="stable")]
        covered = np.cumsum(self.counts[order])
        n = 1 + np.searchsorted(covered, math.ceil(COVERAGE * self.total)) if len(order) else 0
        return [chr(code) for code in order[:n]]


# ---------------------------------------------------------------------------------------
# How ours are put together

_LONGEST = 1 << 18  # characters handed to the library at once; it needs a few hundred bytes for each
_SHORT = 1 << 12  # characters of a part; where one is odd, no more than that is encoded without looking up
_REMEMBERED = 1_000_000  # words; then start anew
_PREPEND = {"type": "Prepend", "prepend": " "}

# GPT-2's letter for each byte: the printable ones themselves, for the others those from 256 on.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(_HIDDEN)}


def _build(alphabet: list[str], merges: list[tuple[str, str]], config: recipe.Tokenizer) -> tokenizers.Tokenizer:
    names = [name for name, *_ in SPECIAL.values()] + BYTES
    learned = dict.fromkeys([*alphabet, *(first + second for first, second in merges)])
    # No token is learned that looks like one of these: letters, digits and signs are never parts of the same.
    assert learned.keys().isdisjoint(names)
    vocabulary = {name: id for id, name in enumerate([*names, *learned])}
    inner = tokenizers.Tokenizer(
        models.BPE(vocabulary, [(first, second) for first, second in merges], byte_fallback=True)
    )
    inner.add_special_tokens([AddedToken(name, special=True, normalized=False) for name, *_ in SPECIAL.values()])

    form = {"none": [], "nfc": [normalizers.NFC()], "nfkc": [normalizers.NFKC()]}[config.normalise]
    # Lowercase letters may be several characters that the form writes as one, and the form may bring capitals.
    steps = [*form, *([normalizers.Lowercase(), *form] if config.lowercase else [])]
    back = [decoders.ByteFallback(), decoders.Fuse()]
    if config.kind == "bpe":
        steps.append(normalizers.Prepend(" "))
        back.append(decoders.Strip(" ", 1, 0))
        inner.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "isolated")
    if steps:
        inner.normalizer = normalizers.Sequence(steps)
    inner.decoder = decoders.Sequence(back)
    return inner

"""Ids to text as they come, one at a time: whole characters only, and nothing of a stop string.

Tokens stand for bytes: of a character (byte-level subwords, our bytes), or of its UTF-8 form. What is not whole yet is
held back until it is.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from regard.data.tokenizer import Tokenizer


class Reader:
    """The text of ids that are added one by one, up to the first of the strings that stop it.

    ``begins`` says that nothing stands before, as some tokenizers begin a text otherwise than they go on.

    >>> from regard import recipe
    >>> mine = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
    >>> reader = Reader(mine, stop=["END"])
    >>> [reader.add(id) for id in mine.encode("aéE. END")]
    ['a', '', 'é', '', 'E.', ' ', '', '', '']
    >>> reader.text, reader.stopped
    ('aéE. ', True)
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, begins: bool = True):
        self.tokenizer, self.stop, self.begins = tokenizer, stop, begins
        self.whole = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.text, self.shown, self.stopped = "", 0, False
        self.sizes: list[int] = []  # characters after each token

    def add(self, id: int) -> str:
        """Read on; returns what can be shown now."""
        first = self.begins and not self.sizes
        new = self.whole.decode(self.tokenizer.piece(int(id), first=first))
        self._take(new)
        self.sizes.append(len(self.text))
        return self._show(len(self.text) - self._held())

    def finish(self) -> str:
        """What was held back, when nothing comes any more."""
        self._take(self.whole.decode(b"", final=True))
        return self._show(len(self.text))

    @property
    def n_tokens(self) -> int:
        """How many of the tokens the text is made of; the last of them may reach into what stopped it."""
        return next((i + 1 for i, size in enumerate(self.sizes) if size >= len(self.text)), len(self.sizes))

    def _take(self, new: str) -> None:
        if self.stopped:
            return
        begin = max(0, len(self.text) - max(map(len, self.stop), default=0))
        self.text += new
        met = [at for stop in self.stop if (at := self.text.find(stop, begin)) >= 0]
        if met:
            self.text, self.stopped = self.text[: min(met)], True

    def _held(self) -> int:
        """Characters at the end with which a stop string may have begun."""
        if self.stopped:
            return 0
        longest = min(len(self.text), max((len(stop) - 1 for stop in self.stop), default=0))
        return next((n for n in range(longest, 0, -1) if any(s.startswith(self.text[-n:]) for s in self.stop)), 0)

    def _show(self, upto: int) -> str:
        shown, self.shown = self.shown, max(self.shown, upto)
        return self.text[shown:upto]

"""Files in, a data directory out, and batches from it: tokenizer, readers, prepare, store, batches.

>>> from regard.data import Tokenizer
>>> from regard.recipe import Tokenizer as Config
>>> Tokenizer.train(["a dog"], Config(kind="bytes")).encode("dog")
[104, 115, 107]
"""

from regard.data.prepare import prepare
from regard.data.store import DataDir, Ragged
from regard.data.tokenizer import Tokenizer

__all__ = ["DataDir", "Ragged", "Tokenizer", "prepare"]

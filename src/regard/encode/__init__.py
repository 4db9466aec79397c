"""A model in, what it reads out: the counterpart of :mod:`regard.decode`.

rows.py    texts as the rows a model was trained on, and batches of them
images.py  images as a model was trained on them, and batches of them
fill.py    the likeliest tokens for a mask
labels.py  a label for a text, a tag for each word
spans.py   tags to spans: IOB1, IOB2 (BIO), BIOES
shots.py   a label for a text from a language model and a few examples
embed.py   a vector for a text
match.py   how well images and texts fit, in one space
codes.py   images as codes, and painted again from those
"""

"""A model in, sequences out: beams and draws over one step function, and the jobs that are made of them.

settings.py   how sequences are chosen
search.py     the search: ``search(model, prompt, memory=...)``
ways.py       how its rows go on: by beams or by draws
recorded.py   its beginning and its steps on a GPU, recorded and replayed
kernels.py    its choices there, by kernels
translate.py  texts in, translations out
generate.py   prompts in, what follows them out
text.py       ids to text as they come
chat.py       turns in, answers out
caption.py    images in, captions out
draw.py       texts in, images out
"""

from regard.decode.settings import Decoding as Decoding

"""A trained model and its jobs: what :func:`load` returns.

    model = regard.load("runs/en-de")
    model.translate(["A dog runs."])

A model is a network, its tokenizers and what it was trained to do. The jobs themselves are rooms of their own
(:mod:`regard.decode`, :mod:`regard.encode`); this is where they are found.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from regard.config import InputError, ModelConfig, Tokens
from regard.data.tokenizer import Tokenizer
from regard.decode.recorded import Recorder
from regard.files import SHIPPED, shipped
from regard.memory import hand_back_freed_memory
from regard.nn import Transformer, skeleton
from regard.nn.packed import Int8, multiplies_int8, pack
from regard.schema import suggest
from regard.weights import read_weights

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from regard.decode.caption import Caption
    from regard.decode.draw import Drawing
    from regard.decode.generate import Generation
    from regard.decode.translate import Translation
    from regard.encode.fill import Filled
    from regard.encode.labels import Classification, Given, Scored, Tagged
    from regard.encode.match import Match
    from regard.look.ablation import Ablation, HeadTable
    from regard.look.attention import Attention
    from regard.look.trace import Trace

Precision = Literal["float32", "bfloat16", "float16", "int8"]
Pooling = Literal["mean", "class", "end"]


class Model:
    """A network in evaluation mode, and what goes with it."""

    def __init__(
        self,
        net: Transformer,
        task: str,
        tokenizer: Tokenizer | None,
        source_tokenizer: Tokenizer | None = None,
        *,
        longest: int = 256,
        labels: Sequence[str] = (),
        n_texts: int | None = None,
        pooling: Pooling | None = None,
        prefix: Sequence[int] | None = None,
        ends: Sequence[int] | None = None,
        between: Sequence[int] = (),
        chat_template: str | None = None,
        images: Mapping[str, Any] | None = None,
        path: Path | None = None,
    ):
        self.net = net.eval()
        self.task = task
        self._tokenizer, self._source_tokenizer = tokenizer, source_tokenizer
        towers = (net.config.encoder, net.config.decoder)
        over_text = [tower for tower in towers if tower is not None and isinstance(tower.input, Tokens)]
        limits = [limit for tower in over_text if (limit := getattr(tower, "position_limit", None)) is not None]
        self.longest = min([longest, *limits])  # tokens of the longest text it was trained on, and has positions for
        self.labels = tuple(labels)  # names by their ids: of texts for classify, of words for tag
        self.n_texts = n_texts  # that are judged together: one, or a pair; None where nobody said
        self.pooling: Pooling | None = pooling  # how a text becomes one vector, where the model was trained to a way
        self.path = path
        start, end = ([tokenizer.start], [tokenizer.end]) if tokenizer else ([], [])
        self.prefix = start if prefix is None else [*prefix]  # ids before every prompt; an imported model may have none
        self.ends = end if ends is None else [*ends]  # ids of which any ends a text
        self.between = [*between]  # ids after the first of two texts, beside its end
        self.chat_template = chat_template  # Jinja, where it is not in a file beside the model
        self.images = images  # how images were treated in training: size, channels, mean, std
        self.recorder = Recorder()  # what decoding does on a GPU

    @property
    def has_tokenizer(self) -> bool:
        """Whether it reads or writes text at all."""
        return self._tokenizer is not None

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the text that is written, or the only one."""
        if self._tokenizer is None:
            raise InputError(f"{self.path or 'this model'}: reads images, and has no tokenizer; give another model")
        return self._tokenizer

    @property
    def source_tokenizer(self) -> Tokenizer:
        """Of the text that is read."""
        return self._source_tokenizer or self.tokenizer

    @property
    def endings(self) -> list[int]:
        """The ids of which any ends a text, as far as the model can write them."""
        return [id for id in self.ends if id < self._n_written]

    @property
    def never(self) -> list[int]:
        """The special ids that are not to be written: they are for reading."""
        tokens, ends = self.tokenizer, self.endings
        return [id for id in {tokens.pad, tokens.start, tokens.mask} if id < self._n_written and id not in ends]

    @property
    def _n_written(self) -> int:
        return self.config.last.input.vocab_size  # type: ignore[union-attr]

    @property
    def config(self) -> ModelConfig:
        return self.net.config

    @property
    def device(self) -> torch.device:
        return next(self.net.parameters()).device

    @property
    def precision(self) -> str:
        """What its products are computed in."""
        whole = any(isinstance(layer, Int8) for layer in self.net.modules())
        return "int8" if whole else str(next(self.net.parameters()).dtype).removeprefix("torch.")

    @property
    def n_parameters(self) -> int:
        """Parameters, a shared one counted once; also where they are packed."""
        return skeleton(self.config).n_parameters()

    @property
    def context(self) -> int | None:
        """How many tokens a decoder can read and write together; None where there is no limit."""
        return getattr(self.config.decoder, "position_limit", None)

    def translate(self, texts: Sequence[str] | str, **options: Any) -> list[Translation]:
        """Translate texts of any length, an empty one or a document alike; each is one answer.

        Options are those of :class:`~regard.decode.Decoding` (beam, n_best, length_penalty ...) and ``align``, which
        adds what each word was translated from.
        """
        from regard.decode.translate import translate

        return translate(self, [texts] if isinstance(texts, str) else texts, **options)

    def fill(self, texts: Sequence[str] | str, top: int = 5) -> list[Filled]:
        """The likeliest tokens for each [MASK] of a text; [SEP] parts a text in two segments."""
        from regard.encode.fill import fill

        return fill(self, [texts] if isinstance(texts, str) else texts, top=top)

    def classify(self, given: Sequence[Given] | str) -> list[Classification] | list[Scored]:
        """The label of each text, of each pair of texts, or of each image, with all probabilities; a model that was
        trained on numbers gives a number. Images are paths, bytes of a file, images of pillow, or arrays (H, W, 3)."""
        from regard.encode.labels import classify

        return classify(self, [given] if isinstance(given, str) else given)

    def tag(self, sentences: Sequence[Sequence[str] | str] | str) -> list[Tagged]:
        """The tag of each word of sentences: strings, whose words stand between spaces, or lists of words."""
        from regard.encode.labels import tag

        return tag(self, [sentences] if isinstance(sentences, str) else sentences)

    def embed(
        self, texts: Sequence[Any] | str, pool: Pooling | None = None, normalise: bool = True
    ) -> NDArray[np.float32]:
        """A vector for each text, (N, d): the mean of its tokens' vectors, the first one's or the last one's, of length
        1 unless told otherwise. Left out, the way is the one that the model was trained to, or the mean. A model that
        matches images and texts also takes images: paths (not as strings), bytes, images of pillow, arrays."""
        from regard.encode.embed import embed
        from regard.encode.match import embed_images

        if len(texts) and not isinstance(texts[0], str) and self.config.text is not None:
            return embed_images(self, texts, normalise)
        return embed(self, [texts] if isinstance(texts, str) else texts, pool=pool, normalise=normalise)

    def generate(self, prompts: Sequence[str] | str, **options: Any) -> list[Generation]:
        """What follows each prompt, drawn or searched; see :func:`regard.decode.generate.generate`.

        ``generate("Once upon", max_new_tokens=50, temperature=0.8, top_p=0.95, seed=1)``
        """
        from regard.decode.generate import generate

        return generate(self, [prompts] if isinstance(prompts, str) else prompts, **options)

    def caption(self, images: Sequence[Any] | str | Path, **options: Any) -> list[Caption]:
        """What each image shows, in words. Images are paths, bytes of a file, images of pillow, or arrays (H, W, 3);
        options are those of :class:`~regard.decode.Decoding` (beam, n_best, length_penalty ...)."""
        from regard.decode.caption import caption

        return caption(self, [images] if isinstance(images, str | Path) else images, **options)

    def match(
        self, images: Sequence[Any] | str | Path, texts: Sequence[str], templates: Sequence[str] = ("{}",)
    ) -> Match:
        """How well each image fits each text, (N, M): probabilities of the texts, and cosines. A template is what a
        text stands in, "a photo of a {}"; of several, the mean of the vectors counts."""
        from regard.encode.match import match

        return match(self, [images] if isinstance(images, str | Path) else images, texts, templates)

    def draw(self, texts: Sequence[str] | str, **options: Any) -> list[list[Drawing]]:
        """Images of each text, drawn code by code and painted; see :func:`regard.decode.draw.draw`.

        ``draw("an ankle boot", n=8, temperature=1.0, top_k=0, top_p=1.0, seed=0, rerank=clip)``
        """
        from regard.decode.draw import draw

        return draw(self, [texts] if isinstance(texts, str) else texts, **options)

    @cached_property
    def painter(self) -> Model:
        """Of a model that draws: the one that paints its codes, which lies in its folder."""
        if self.path is None or not (self.path / "painter").is_dir():
            raise InputError(f"{self.path or 'this model'}: has no painter/ beside it, and so paints nothing")
        return load(self.path / "painter", device=self.device.type, precision="float32")

    def codes(self, images: Sequence[Any]) -> NDArray[np.int64]:
        """The codes of images, (N, P), a row of an image after the other: what a model that paints has for tokens.
        Images are paths, bytes of a file, images of pillow, or arrays (H, W, 3)."""
        from regard.encode.codes import codes

        return codes(self, [images] if isinstance(images, str | Path | bytes) else images)

    def paint(self, codes: NDArray[np.integer] | Sequence[Sequence[int]]) -> NDArray[np.uint8]:
        """The images of codes, (N, H, W, C)."""
        from regard.encode.codes import paint

        return paint(self, codes)

    def attention(
        self, given: Any, target: Any = None, *, layers: str | int | Iterable[str | int] | None = None
    ) -> Attention:
        """What every layer and head attends to over one input: a text, two texts, an image, or a tensor as the network
        takes it. A model that writes looks at its ``target`` as well; left out, that is what it says itself. A model
        that matches takes an image, a text as ``target``, or both.

        ``layers`` are names or parts of them: "decoder.2.cross", "cross", 2. No layer runs above the last of them.

        ``attention("A dog runs.").save("a.html")``, and ``.rollout()``, ``.entropy()``, ``["decoder.2.cross"].weights``
        """
        from regard.look.attention import attention

        return attention(self, given, target, layers=layers)

    def trace(self, given: Any, **options: Any) -> Trace:
        """What the search did for one input that ``translate``, ``caption`` or ``generate`` gets, step by step: what it
        could write, what it took, what it did not take and why. Options and answer are those of that job.

        ``trace("A dog runs.", beam=4).save("a.html")``, and ``.steps``, ``.answer``, ``print(...)``
        """
        from regard.look.trace import trace

        return trace(self, given, **options)

    def ablate(self, given: Any, target: Any = None, *, heads: Iterable[tuple[str | int, int]]) -> Ablation:
        """The loss and the answer with some ``heads`` switched off, each a layer and a number. The loss is that of the
        ``target``: left out, of the model's own answer, and of a language model, of the text itself.

        ``ablate("A dog runs.", heads=[("decoder.2.cross", 3)])``
        """
        from regard.look.ablation import ablate

        return ablate(self, given, target, heads=heads)

    def ablate_each(
        self, given: Any, target: Any = None, *, layers: str | int | Iterable[str | int] | None = None
    ) -> HeadTable:
        """How much that loss rises without each head by itself, of all ``layers`` or of some."""
        from regard.look.ablation import ablate_each

        return ablate_each(self, given, target, layers=layers)

    def logits(self, *inputs: Tensor) -> Any:
        """The network's own output: ``logits(ids)``, ``logits(source_ids, target_ids)``, ``logits(pixels)``."""
        with torch.no_grad():
            return self.net(*(t.to(self.device) for t in inputs))

    def check_task(self, *tasks: str) -> None:
        """Refuse a job that this model was not trained for."""
        if self.task not in tasks:
            path = self.path or Path("this model")
            name = path.name if path.is_absolute() else path  # a client of a server learns of no folders
            raise InputError(f"{name}: was trained to {self.task}, not to {' or '.join(tasks)}; give another model")


def load(
    path: str | Path, *, device: str | None = None, precision: Precision | None = None, packed: bool = True
) -> Model:
    """A trained model: of a run directory, one that comes with regard by its name, or somebody else's: a directory with
    a Hugging Face checkpoint (config.json, safetensors, tokenizer), or a GGUF file.

    Left out, the device is a GPU if there is one, and the precision bfloat16 there, float32 on a CPU. On a CPU the
    weights are laid out anew for its matrix kernels; ``packed=False`` leaves them as they are, to look at or to export.
    With ``int8`` a CPU multiplies whole numbers; all else stays float32.

    >>> load("nowhere")
    Traceback (most recent call last):
    regard.schema.InputError: nowhere: no such directory...
    """
    precisions = typing.get_args(Precision)
    if precision not in (None, *precisions):
        raise InputError(f"precision ({precision!r}) must be {', '.join(precisions[:-1])} or {precisions[-1]}")
    if device is not None and str(device).partition(":")[0] not in ("cpu", "cuda"):
        raise InputError(f"device ({device!r}) must be cpu or cuda")
    if str(device).startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device ({device}): there is no GPU here; leave it out")
    found = _found(path)
    parts = _parts(found)
    _check_tokenizers(found, parts)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    int8 = precision == "int8"
    if int8 and place.type != "cpu":
        raise InputError(f"precision (int8): goes with a CPU, not with {place.type}; leave it out")
    if int8 and not packed:
        raise InputError("precision (int8): weights are laid out for it, and packed=False leaves them; leave one out")
    if int8 and not multiplies_int8():
        raise InputError("precision (int8): this torch has no such product for this machine; leave it out")
    dtype = getattr(torch, "float32" if int8 else precision or ("bfloat16" if place.type == "cuda" else "float32"))
    net = parts.net.to(place, dtype).requires_grad_(False)
    if packed:
        pack(net, int8=int8)
        hand_back_freed_memory()  # that of the weights as they were
    return Model(net, parts.task, parts.tokenizer, parts.source_tokenizer, path=found, **parts.options)


class Parts(NamedTuple):
    """What the files of a model hold, as they hold it."""

    net: Transformer
    task: str
    tokenizer: Tokenizer | None = None  # a model over images has none
    source_tokenizer: Tokenizer | None = None
    options: Mapping[str, Any] = {}  # of Model: longest, labels, pooling, prefix ...


def _parts(path: Path) -> Parts:
    if path.suffix == ".gguf" or (not (path / "config.json").exists() and any(path.glob("*.gguf"))):
        from regard.interop.gguf import read_gguf

        return read_gguf(path)
    try:
        facts = json.loads((path / "config.json").read_text(encoding="utf-8"))
        if is_foreign := "model_type" in facts or "architecture" in facts:  # the latter is timm's
            task = config = options = None
        else:
            task, config = facts["task"], facts["model"]
            data = facts["recipe"]["data"]
            options = {"longest": data.get("max_tokens", 256), "images": facts.get("images")}
            if task == "classify":
                options["n_texts"] = 2 if len(data.get("columns", ())) == 3 else 1
    except OSError:
        raise InputError(f"{path}: not a model of regard (no config.json); train one: regard train RECIPE") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path / 'config.json'}: not of a run of regard; is this a run directory?") from None
    if is_foreign:
        from regard.interop.checkpoint import read_checkpoint

        return read_checkpoint(path)
    return _own_parts(path, task, config, options)


def _own_parts(folder: Path, task: Any, config: Any, options: Any) -> Parts:
    """Of a run directory."""
    if not (folder / "model.safetensors").exists():
        raise InputError(
            f"{folder}: has no model.safetensors yet; it is written every train.valid_every steps, and when training is"
            " stopped"
        )
    weights = read_weights(folder / "model.safetensors")
    net = skeleton(ModelConfig.from_dict(config))
    try:
        net.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise InputError(f"{folder / 'model.safetensors'}: does not fit its config.json ({problem[:200]})") from None
    reads_text = any(
        isinstance(t.input, Tokens) for t in (net.config.encoder, net.config.decoder, net.config.text) if t
    )
    own = folder / "source.tokenizer.json"
    tokenizer = Tokenizer.load(folder / "tokenizer.json") if reads_text else None
    source = Tokenizer.load(own) if own.exists() else None
    between = tokenizer.between() if tokenizer is not None and net.config.shape == "encoder" else []
    return Parts(net, task, tokenizer, source, {**options, "labels": _labels(folder), "between": between})


def _check_tokenizers(path: Path, parts: Parts) -> None:
    """Refuse a tokenizer with ids that the model has no vector for. A table may be larger: many are, to be even."""
    config, source = parts.net.config, parts.source_tokenizer or parts.tokenizer
    sides = ((config.encoder, source), (config.decoder, parts.tokenizer), (config.text, parts.tokenizer))
    for tower, tokenizer in sides:
        size = getattr(tower.input, "vocab_size", None) if tower is not None else None
        if size is not None and tokenizer is not None and len(tokenizer) > size:
            raise InputError(
                f"{path}: its tokenizer has {len(tokenizer)} tokens, and the model's table only {size};"
                " they do not belong together"
            )


def _labels(folder: Path) -> list[str]:
    """The names in labels.json; none where there is no such file."""
    path = folder / "labels.json"
    if not path.exists():
        return []
    try:
        labels = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: is not JSON ({error})") from None
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise InputError(f'{path}: must be a list of names: ["no", "yes"]')
    return labels


def _found(path: str | Path) -> Path:
    folder = Path(path)
    if folder.is_dir():
        return folder
    known = shipped()
    if str(path) in known:
        return SHIPPED / str(path)
    if folder.suffix == ".gguf" and folder.is_file():
        return folder
    if folder.exists():
        raise InputError(f"{path}: is a file; a model is a directory: regard train makes one")
    others = f", and no model of that name comes with regard; {suggest(str(path), known)}" if known else ""
    raise InputError(f"{path}: no such directory{others}")

"""A trained model and its jobs: what :func:`load` returns.

    model = regard.load("runs/en-de")
    model.translate(["A dog runs."])

A model is a network, its tokenizers and what it was trained to do. The jobs themselves are rooms of their own
(:mod:`regard.decode`); this is where they are found.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from regard.config import InputError, ModelConfig
from regard.data.tokenizer import Tokenizer
from regard.decode.recorded import Recorder
from regard.nn import Transformer, skeleton
from regard.nn.packed import pack
from regard.schema import suggest
from regard.weights import read_weights

if TYPE_CHECKING:
    from regard.decode.translate import Translation

SHIPPED = Path(__file__).parents[2] / "models"
Precision = Literal["float32", "bfloat16", "float16"]


class Model:
    """A network in evaluation mode, and what goes with it."""

    def __init__(
        self,
        net: Transformer,
        task: str,
        tokenizer: Tokenizer,
        source_tokenizer: Tokenizer | None = None,
        *,
        longest: int = 256,
        path: Path | None = None,
    ):
        self.net = net.eval()
        self.task, self.tokenizer = task, tokenizer
        self.source_tokenizer = source_tokenizer or tokenizer
        towers = (net.config.encoder, net.config.decoder)
        limits = [limit for tower in towers if (limit := getattr(tower, "position_limit", None)) is not None]
        self.longest = min([longest, *limits])  # tokens of the longest text it was trained on, and has positions for
        self.path = path
        self.recorder = Recorder()  # steps of decoding on a GPU

    @property
    def config(self) -> ModelConfig:
        return self.net.config

    @property
    def device(self) -> torch.device:
        return next(self.net.parameters()).device

    @property
    def n_parameters(self) -> int:
        """Parameters, a shared one counted once; also where they are packed."""
        return skeleton(self.config).n_parameters()

    def translate(self, texts: Sequence[str] | str, **options: Any) -> list[Translation]:
        """Translate texts of any length, an empty one or a document alike; each is one answer.

        Options are those of :class:`~regard.decode.Decoding` (beam, n_best, length_penalty ...) and ``align``, which
        adds what each word was translated from.
        """
        from regard.decode.translate import translate

        return translate(self, [texts] if isinstance(texts, str) else texts, **options)

    def logits(self, *inputs: Tensor) -> Any:
        """The network's own output: ``logits(ids)``, ``logits(source_ids, target_ids)``, ``logits(pixels)``."""
        with torch.no_grad():
            return self.net(*(t.to(self.device) for t in inputs))

    def check_task(self, *tasks: str) -> None:
        """Refuse a job that this model was not trained for."""
        if self.task not in tasks:
            name = self.path or "this model"
            raise InputError(f"{name}: was trained to {self.task}, not to {' or '.join(tasks)}; give another model")


def load(
    path: str | Path, *, device: str | None = None, precision: Precision | None = None, packed: bool = True
) -> Model:
    """A trained model: of a run directory, or one that comes with regard by its name.

    Left out, the device is a GPU if there is one, and the precision bfloat16 there, float32 on a CPU. On a CPU the
    weights are laid out anew for its matrix kernels; ``packed=False`` leaves them as they are, to look at or to export.

    >>> load("nowhere")
    Traceback (most recent call last):
    regard.schema.InputError: nowhere: no such directory...
    """
    folder = _found(path)
    try:
        facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        task, config, recipe = facts["task"], facts["model"], facts["recipe"]
        longest = recipe["data"].get("max_tokens", 256)
    except OSError:
        raise InputError(f"{folder}: not a model of regard (no config.json); train one: regard train RECIPE") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{folder / 'config.json'}: not of a run of regard; is this a run directory?") from None
    if not (folder / "model.safetensors").exists():
        raise InputError(f"{folder}: has no model.safetensors yet; it is written at the first validation")
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    weights = read_weights(folder / "model.safetensors")
    net = skeleton(ModelConfig.from_dict(config))
    try:
        net.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise InputError(f"{folder / 'model.safetensors'}: does not fit its config.json ({problem[:200]})") from None
    dtype = getattr(torch, precision or ("bfloat16" if place.type == "cuda" else "float32"))
    own = folder / "source.tokenizer.json"
    net = net.to(place, dtype).requires_grad_(False)
    if packed:
        pack(net)
    return Model(
        net,
        task,
        Tokenizer.load(folder / "tokenizer.json"),
        Tokenizer.load(own) if own.exists() else None,
        longest=longest,
        path=folder,
    )


def _found(path: str | Path) -> Path:
    folder = Path(path)
    if folder.is_dir():
        return folder
    shipped = sorted(p.name for p in SHIPPED.iterdir() if p.is_dir()) if SHIPPED.is_dir() else []
    if str(path) in shipped:
        return SHIPPED / str(path)
    if folder.exists():
        raise InputError(f"{path}: is a file; a model is a directory: regard train makes one")
    others = f", and no model of that name comes with regard; {suggest(str(path), shipped)}" if shipped else ""
    raise InputError(f"{path}: no such directory{others}")

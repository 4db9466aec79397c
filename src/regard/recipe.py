"""What a run is, as data: where text or images come from, which model, how it is trained.

A recipe is a TOML file of three tables. Everything but ``task``, the files and ``steps`` has a default::

    [data]
    task = "translate"
    train = { source = "train.en.gz", target = "train.de.gz" }
    valid = { source = "val.en.gz", target = "val.de.gz" }
    [data.tokenizer]
    vocab_size = 8_000

    [model]
    preset = "vaswani_base"      # vocabulary and labels are filled in from the prepared data

    [train]
    steps = 10_000

Values can be changed for one run: ``read(path, ["train.steps=100"])``. Nothing here imports torch. The string below a
field says what it does; ``regard explain`` prints it beside the field's value and where that came from.

A recipe that continues a trained model (``regard train RECIPE --from MODEL``) names no model, or only what changes in
it: :func:`completed` puts the rest there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from regard import presets
from regard.config import Codes, Contrastive, Grid, Labels, ModelConfig, Patches, Pooled, Recurrent, Stack, Vocabulary
from regard.schema import ConfigError, Node, at_least, fractions, from_dict, merge, read_json, read_toml

Task = Literal["translate", "generate", "fill", "classify", "tag", "prefer", "caption", "match", "paint", "draw"]
CAPTIONED: tuple[Task, ...] = ("caption", "match", "draw")  # images with texts
OVER_IMAGES: tuple[Task, ...] = ("classify", "paint", *CAPTIONED)  # what can be learned from images


@dataclass(frozen=True, kw_only=True)
class Files(Node):
    """The raw files of one split: paths or globs, compressed (gz, xz, zst) or not, relative to where you are."""

    files: tuple[str, ...] = ()
    """Files with all columns in them (tsv, csv, jsonl, parquet, conll), or plain text (files, folders). Beside source
    and target they are read after those. Of images: folders with a folder for each label, tables, or idx files."""
    source: tuple[str, ...] = ()
    """For parallel text in two files: the side that is read, a line a sentence."""
    target: tuple[str, ...] = ()
    """For parallel text in two files: the side that is written."""

    def problems(self) -> Iterator[str]:
        if bool(self.source) != bool(self.target):
            given, missing = ("source", "target") if self.source else ("target", "source")
            yield f"{missing} (none): {given} is given, and parallel text needs both"

    @property
    def empty(self) -> bool:
        return not (self.files or self.source)


@dataclass(frozen=True, kw_only=True)
class Tokenizer(Node):
    """How text becomes ids."""

    kind: Literal["bpe", "characters", "bytes"] = "bpe"
    """Subwords learned from the data, its characters, or bytes. What is unknown falls back to bytes."""
    vocab_size: int = 8_000
    """For bpe: subwords, bytes and special tokens together."""
    shared: bool = True
    """For translate: one vocabulary for both sides, or one a side."""
    normalise: Literal["none", "nfc", "nfkc"] = "nfc"
    """Unicode normal form that text is brought to first."""
    lowercase: bool = False
    """Fold case first."""
    file: str | None = None
    """An existing tokenizer.json to use instead of learning one."""

    def problems(self) -> Iterator[str]:
        if self.kind == "bpe" and self.file is None and self.vocab_size < 300:
            yield f"vocab_size ({self.vocab_size}) must be at least 300: bytes, special tokens and some subwords"


@dataclass(frozen=True, kw_only=True)
class Images(Node):
    """How images become pixels. They lie in a folder for each label; or a table (tsv, csv, jsonl, parquet) has their
    paths, relative to itself, or in parquet their bytes; or they are MNIST's idx files, with the labels beside them."""

    size: int
    """Pixels of a side: the short side of each image is made this long (bicubic, antialiased), and the middle of the
    long one cut out."""
    channels: Literal[3, 1] = 3
    """3 in colour, 1 in grey."""
    max_broken: float = 0.01
    """Images that cannot be read are named and left out, up to this share of them; beyond, nothing is prepared."""
    names: tuple[str, ...] = ()
    """For labels that are numbers from 0 on, as in idx files: the name of each; for draw, its text."""
    tokenizer: str | None = None
    """For draw: the run of a model that paints; the codes of images are its own. It goes along into the data and into
    what is trained on them."""

    def problems(self) -> Iterator[str]:
        yield from at_least(self, 1, "size")
        if not 0 <= self.max_broken <= 1:
            yield f"max_broken ({self.max_broken}) must be from 0 to 1"
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            yield f"names ({', '.join(self.names)}): {twice!r} is there twice; each label needs its own"


@dataclass(frozen=True, kw_only=True)
class Data(Node):
    """From raw files to a data directory."""

    task: Task
    """translate (text to text), generate (next token), fill (masked tokens; of a recurrent model: the next and the one
    before), classify (a label a text, or an image), tag (a label a word), prefer (of two answers to a prompt, the
    better one), caption (a text of an image), match (which text belongs to which image), paint (images from a few
    codes, which makes tokens of them), draw (a text to an image's codes)."""
    train: Files
    """The files to learn from."""
    valid: Files = Files()
    """The files to choose the model on."""
    hold_out: float = 0.0
    """Without valid files: the last share of the training data is held out for validation."""
    columns: tuple[str, ...] = ()
    """Names of the columns, or their numbers from 1 where there is no header: source, target; text, label; text, second
    text, label; image, label; image, text; image; word, tag; text; prompt, chosen, rejected. Left out: the first ones,
    of files without a header (conll: the first and the last); for classify there may be no others."""
    labels: Literal["names", "numbers"] = "names"
    """For classify: a label is one of several names, or a number that is to be met as closely as possible."""
    documents: Literal["file", "paragraph", "line"] = "file"
    """For generate and fill from plain text: what a document is; paragraphs stand between blank lines."""
    max_tokens: int = 256
    """For the other tasks: longer examples are dropped, and counted. For draw every text is made so long, with padding
    that is read, so that images begin at one place (DALL-E has 256)."""
    max_ratio: float | None = None
    """For translate: pairs whose lengths differ by more than this factor are dropped, and counted."""
    tokenizer: Tokenizer = Tokenizer()
    """How text becomes ids."""
    images: Images | None = None
    """How images become pixels, for a task over images: classify, caption, match, paint, draw. Left out: it is over
    text."""

    def problems(self) -> Iterator[str]:
        if self.train.empty:
            yield 'train (no files): say where the text is: train = { files = "text/*.txt" }'
        for name, files in (("train", self.train), ("valid", self.valid)):
            if files.source and self.task != "translate":
                yield f"{name}.source: only translate reads two sides; for {self.task} give files"
        counts = {"classify": (2, 3), "generate": (1,), "fill": (1,), "prefer": (3,), "paint": (1,)}
        needed = counts.get(self.task, (2,))
        if self.columns and len(self.columns) not in needed:
            wanted = " or ".join(map(str, needed))
            yield f"columns ({', '.join(self.columns)}): {self.task} needs {wanted}, not {len(self.columns)}"
        if self.images is not None:
            if self.task not in OVER_IMAGES:
                yield f"images: goes with task {' or '.join(map(repr, OVER_IMAGES))}, not {self.task!r}; leave it out"
            elif len(self.columns) == 3:
                yield f"columns ({', '.join(self.columns)}): of images there are two, image and label"
            if (self.task == "draw") != (self.images.tokenizer is not None):
                yield (
                    "images.tokenizer: missing; draw needs the run of a model that paints: regard train CODES.toml"
                    if self.task == "draw"
                    else f"images.tokenizer ({self.images.tokenizer}): goes with task 'draw', not {self.task!r}"
                )
        elif self.task in OVER_IMAGES and self.task != "classify":
            yield f"images: missing; {self.task} is over images: give images = {{ size = 224 }}"
        if "0" in self.columns:
            yield "columns (0) are counted from 1"
        if self.labels == "numbers" and self.task != "classify":
            yield f"labels ('numbers'): goes with task 'classify', not {self.task!r}"
        yield from fractions(self, "hold_out")
        yield from at_least(self, 1, "max_tokens")
        if self.hold_out and not self.valid.empty:
            yield f"hold_out ({self.hold_out}): valid files are given, so nothing needs to be held out"
        if self.max_ratio is not None and self.max_ratio <= 1:
            yield f"max_ratio ({self.max_ratio}) must be above 1"


@dataclass(frozen=True, kw_only=True)
class Train(Node):
    """From batches to a run directory."""

    steps: int
    """Updates of the weights."""
    batch_tokens: int = 4_096
    """Tokens of one update, padding included, on the longer side, over all micro-batches and processes together. For
    text; a batch of images is batch_images large."""
    batch_images: int | None = None
    """Images of one update, over all micro-batches and processes together. Left out: 128."""
    micro_batches: int = 1
    """One update's batch is worked on in so many parts, to save memory; the result is the same."""
    packed: bool | None = None
    """Rows of fixed length filled with several texts that do not see each other, instead of one text a row, padded.
    Left out: for generate and fill, and on a GPU for translate."""
    row_tokens: int | None = None
    """Length of a packed row. Left out: the model's max_len; for translate 1,024."""
    seed: int = 1
    """Draws the weights, the order of the data and the dropout."""

    optimizer: Literal["adamw", "muon"] = "adamw"
    """What moves the weights: AdamW, or Muon for the matrices of Transformer layers (Jordan 2024) and AdamW for all
    else."""
    lr: float = 1e-3
    """Highest learning rate."""
    schedule: Literal["noam", "cosine", "wsd", "constant"] = "noam"
    """After a linear warm-up: noam falls with the square root of the step, cosine falls to final_lr at the last step,
    wsd stays and falls at the end, constant stays."""
    warmup: int = 400
    """Steps over which the rate rises."""
    cooldown: float = 0.2
    """For wsd: the last share of the steps, over which the rate falls to final_lr."""
    final_lr: float = 0.0
    """For cosine and wsd: the rate at the last step, as a share of lr."""
    betas: tuple[float, ...] = (0.9, 0.98)
    """AdamW's memory of the gradient and of its square."""
    eps: float = 1e-9
    """AdamW's guard against division by zero."""
    weight_decay: float = 0.0
    """Pull towards zero, on matrices only: not on norms and biases."""
    clip: float = 1.0
    """Longest gradient; 0 leaves it as it is."""

    train_last: int | None = None
    """With --from: so many layers are trained, counted from the top, and the head; all below stays as it was given. 0
    trains the head alone. Left out: everything is trained."""
    layer_decay: float = 1.0
    """Each layer's rate is the one above it's times this, and the embeddings' the lowest; the head has the whole."""
    lora: int = 0
    """With --from: the layers stay as they were given, and beside each of their matrices two narrow ones, this wide,
    are trained (LoRA, Hu et al. 2022); they are added to it in model.safetensors. 0 trains the matrices themselves."""
    lora_alpha: float = 16.0
    """What LoRA's two matrices say is multiplied by this over their width."""

    smoothing: float = 0.0
    """Share of the target's weight that all tokens get alike (label smoothing). Validation is without."""
    r_drop: float = 0.0
    """Weight of the divergence between two passes with different dropout (R-Drop, Liang et al. 2021)."""
    word_dropout: float = 0.0
    """Share of the tokens read that are hidden behind the mask token."""
    bpe_dropout: float = 0.0
    """For translate: share of the subwords that fall apart into the two they were merged from, and those again, anew in
    every epoch and on both sides (after BPE-dropout, Provilkov et al. 2020)."""
    crop: float = 0.0
    """For images, as all up to erase: one is cut out anew in every epoch, from this share of the area up to all of it,
    its sides 3:4 to 4:3, and made as large as before (Szegedy et al. 2015). 0 cuts none."""
    flip: float = 0.0
    """Share of the images whose left and right are swapped: 0.5 where that changes no label."""
    randaugment: float = 0.0
    """Two changes to each image, out of 14 of geometry and colour, this strong, from 0 to 10 (RandAugment, Cubuk et al.
    2020)."""
    mixup: float = 0.0
    """Each image is laid over another, and its label shared with it, by a share drawn from Beta(mixup, mixup) (Zhang et
    al. 2018). With cutmix each image has one of the two."""
    cutmix: float = 0.0
    """A box of each image is another's, and its label shared by area, from Beta(cutmix, cutmix) (Yun et al. 2019)."""
    erase: float = 0.0
    """Share of the images of which a box, 2 % to a third of the area, becomes the mean colour (Zhong et al. 2020)."""
    mask_share: float = 0.15
    """For fill: share of the tokens to be guessed; 80 % become the mask, 10 % another token, 10 % stay (BERT)."""
    beta: float = 0.1
    """For prefer: how dear it is to move away from the model of --from (DPO, Rafailov et al. 2023)."""

    precision: Literal["float32", "bfloat16"] | None = None
    """What products are computed in; weights stay float32. Left out: bfloat16 on a GPU, float32 on a CPU."""
    compile: bool | None = None
    """Use torch.compile. Left out: on a GPU, for packed batches and images, where 1,000 steps or more earn it back."""
    ema: float = 0.0
    """Decay of a moving average of the weights, which is then what is validated and kept; 0 keeps none."""
    average: int = 0
    """At the end, average the last so many checkpoints, and keep that if it validates better."""

    valid_every: int = 500
    """Steps between validations."""
    bleu: int = 0
    """For translate: so many held-out sentences are translated (greedily) at each validation and scored with sacreBLEU;
    the model is then chosen by that, not by the loss. For caption: so many images. 0 translates none."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""
    keep: int = 2
    """Checkpoints that are kept."""
    log_every: int = 50
    """Steps between lines of metrics.jsonl."""
    patience: int = 0
    """Stop after so many validations without a better one; 0 never does."""
    max_skipped: int = 10
    """Updates in a row whose loss is not finite are skipped up to here; then training stops."""

    def problems(self) -> Iterator[str]:
        names = ("steps", "batch_tokens", "batch_images", "micro_batches", "row_tokens", "valid_every")
        yield from at_least(self, 1, *names, "checkpoint_every", "keep", "log_every", "max_skipped")
        names = ("warmup", "lr", "weight_decay", "clip", "r_drop", "average", "bleu", "patience", "seed", "train_last")
        yield from at_least(self, 0, *names, "lora", "randaugment", "mixup", "cutmix")
        yield from fractions(self, "smoothing", "word_dropout", "bpe_dropout", "mask_share", "ema")
        if self.randaugment > 10:
            yield f"randaugment ({self.randaugment}) must be at most 10"
        for name in ("cooldown", "final_lr", "crop", "flip", "erase"):
            if not 0 <= getattr(self, name) <= 1:
                yield f"{name} ({getattr(self, name)}) must be from 0 to 1"
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            yield f"betas ({list(self.betas)}) must be two numbers from 0 up to 1"
        for name in ("eps", "beta", "lora_alpha", "layer_decay"):
            if getattr(self, name) <= 0:
                yield f"{name} ({getattr(self, name)}) must be above 0"
        if self.layer_decay > 1:
            yield f"layer_decay ({self.layer_decay}) must be at most 1"
        if self.lora and self.train_last == 0:
            yield f"lora ({self.lora}): train_last (0) trains no layer; leave one of them out"
        if self.lora and self.optimizer == "muon":
            yield f"lora ({self.lora}): goes with optimizer 'adamw' alone; leave one of them out"
        if self.average > self.keep:
            yield f"average ({self.average}) must be at most keep ({self.keep}): only kept checkpoints can be averaged"


@dataclass(frozen=True, kw_only=True)
class Recipe(Node):
    """A whole run. ``model`` stays a table until the data says how many tokens and labels there are."""

    data: Data
    """Where text or images come from."""
    model: dict[str, Any] = field(default_factory=dict)
    """Which model: a preset with changes, or every value; with --from, what is to be other than there."""
    train: Train
    """How it is trained."""

    @property
    def needs_model(self) -> bool:
        """Whether [model] does not say all of a model, so that ``--from`` must."""
        towers = (self.model.get(name) for name in ("encoder", "decoder", "text"))
        return "preset" not in self.model and not any(isinstance(t, dict) and "input" in t for t in towers)

    def problems(self) -> Iterator[str]:
        yield from self._task_problems()
        if self.needs_model:
            return  # once it is complete, it is read again
        try:
            # The counts are not known yet; any will do to find what is wrong beside them.
            config = model_config(self.model, vocab_size=1, n_labels=2, images=self.data.images)
        except ConfigError as error:
            yield from (f"model: {problem}" for problem in error.problems)
            return
        shape, head = FITS[self.data.task]
        if config.shape != shape or not isinstance(config.head, head):
            yield (
                f"model ({config.shape}, head {config.head.kind}) does not fit task {self.data.task!r}, which needs"
                f" {shape} with a {head.kind} head"
            )
        sees = config.encoder is not None and isinstance(config.encoder.input, Patches | Grid)
        if sees != (self.data.images is not None) and self.data.task != "draw":  # which reads codes
            reads = (config.encoder or config.last).input.kind
            yield (
                f"data.images: missing; the model reads {reads}: give images = {{ size = 224 }}"
                if sees
                else f"data.images: the model reads {reads}; leave it out, or name a model over patches or a grid"
            )
        if self.data.task == "fill" and isinstance(config.encoder, Recurrent) and not config.encoder.bidirectional:
            yield "model.encoder.bidirectional (false) must be true for task 'fill': it is read from both sides"
        if self.train.lora and not any(isinstance(tower, Stack) for tower in (config.encoder, config.decoder)):
            yield f"train.lora ({self.train.lora}): only a Transformer has matrices to put it beside; leave it out"
        if self.train.optimizer == "muon" and not any(isinstance(t, Stack) for t in (config.encoder, config.decoder)):
            yield "train.optimizer ('muon'): only a Transformer has matrices that it moves; leave it out"
        if config.pair_head is not None and (self.data.task != "fill" or self.train.r_drop):
            yield f"model.pair_head: goes with task 'fill' ({self.data.task}) and without r_drop ({self.train.r_drop})"
        if config.share_embeddings and not self.data.tokenizer.shared:
            yield "data.tokenizer.shared (false): the model shares its embeddings; set share_embeddings = false too"

    def _task_problems(self) -> Iterator[str]:
        task, train = self.data.task, self.train
        over_images = self.data.images is not None
        for name in IMAGE_OPTIONS if not over_images else ("word_dropout", "row_tokens", "packed"):
            if getattr(train, name):
                wrong, right = ("images", "text") if over_images else (task, "images")
                yield f"train.{name} ({getattr(train, name)}): goes with {right}; for {wrong} leave it out"
        if train.bleu and task not in ("translate", "caption"):
            yield f"train.bleu ({train.bleu}): only translations and captions have a BLEU; for {task} leave it out"
        numbers = self.data.labels == "numbers"
        for name in _NOT_FOR.get("numbers" if numbers else task, ()):
            if getattr(train, name):
                what = "labels that are numbers" if numbers else f"task {task!r}"
                yield f"train.{name} ({getattr(train, name)}) does not go with {what}; leave it out"


IMAGE_OPTIONS = ("batch_images", "crop", "flip", "randaugment", "mixup", "cutmix", "erase")  # of Train

# What two images share when they are mixed are labels, and pairs are each other's; codes are of images as they are.
_NOT_FOR = {
    "numbers": ("smoothing", "r_drop", "mixup", "cutmix"),
    "prefer": ("smoothing", "r_drop", "word_dropout"),
    "caption": ("mixup", "cutmix"),
    "match": ("smoothing", "r_drop", "mixup", "cutmix"),
    "paint": ("smoothing", "r_drop", "mixup", "cutmix"),
    "draw": ("crop", "flip", "randaugment", "mixup", "cutmix", "erase"),
}

FITS: dict[str, tuple[str, type[Vocabulary | Labels | Pooled | Contrastive | Codes]]] = {
    "translate": ("encoder-decoder", Vocabulary),
    "generate": ("decoder", Vocabulary),
    "fill": ("encoder", Vocabulary),
    "classify": ("encoder", Pooled),
    "tag": ("encoder", Labels),
    "prefer": ("decoder", Vocabulary),
    "caption": ("encoder-decoder", Vocabulary),
    "match": ("two encoders", Contrastive),
    "paint": ("encoder", Codes),
    "draw": ("decoder", Vocabulary),
}


def completed(recipe: Recipe, given: ModelConfig) -> Recipe:
    """A recipe whose [model] says only what changes, with the rest of a given model: its towers, and the head that the
    task needs. That is the given one where it is of the right kind, else a plain one; labels are the data's.

    >>> given = presets.bert_base()
    >>> whole = completed(Recipe(data=Data(task="tag", train=Files(files=("a.conll",))), train=Train(steps=1)), given)
    >>> whole.model["head"], whole.model["encoder"]["n_layers"]
    ({'kind': 'labels', 'dropout': 0.1, 'mix': False}, 12)
    """
    if not recipe.needs_model:
        return recipe
    model = given.to_dict()
    _, head = FITS[recipe.data.task]
    if not isinstance(given.head, head):
        pool: Any = "mean" if isinstance(given.last, Recurrent) else "class"
        plain = (
            Vocabulary(),
            Labels(n_labels=1, dropout=0.1),
            Pooled(pool=pool, dropout=0.1),
            Contrastive(d_embed=512),
            Codes(),
        )
        model["head"] = next(new for new in plain if isinstance(new, head)).to_dict()
    model["head"].pop("n_labels", None)  # the data says how many
    if recipe.data.images is not None and given.encoder is not None:
        for name in ("image_size", "channels"):  # and how large; the positions of another size are made to fit
            model["encoder"]["input"].pop(name, None)
    if recipe.data.task != "fill":
        model["pair_head"] = None
    whole = merge(model, recipe.model)
    return from_dict(Recipe, {**recipe.to_dict(), "model": whole})


def model_config(
    table: dict[str, Any],
    *,
    vocab_size: int,
    source_vocab_size: int | None = None,
    n_labels: int = 0,
    images: Images | None = None,
) -> ModelConfig:
    """The model of a ``[model]`` table, with what only the data knows: how many tokens and labels there are, and how
    large images are.

    >>> model_config({"preset": "gpt2"}, vocab_size=101).decoder.input.vocab_size
    101
    >>> model_config({"preset": "vit_b16"}, vocab_size=0, images=Images(size=32)).encoder.n_positions
    5
    """
    sizes = {"encoder": source_vocab_size or vocab_size, "decoder": vocab_size, "text": vocab_size}
    if isinstance(table, dict):
        table = _without_gaps(table, sizes, n_labels)
        if images is not None:
            table = _with_pixels(table, images)
    plain = presets.resolve(table).to_dict()
    for name, size in sizes.items():
        tower = plain[name]
        if tower is not None and tower["input"]["kind"] == "tokens":
            given = table.get(name, {}).get("input", {}).get("vocab_size", size)
            if given < size:
                raise ConfigError([f"{name}.input.vocab_size ({given}) must be the data's, {size}; leave it out"])
            tower["input"]["vocab_size"] = given  # more than there are: rows that no token uses
    if n_labels and plain["head"]["kind"] in ("labels", "pooled"):
        given = table.get("head", {}).get("n_labels", n_labels)
        if given != n_labels:
            raise ConfigError([f"head.n_labels ({given}) must be the data's, {n_labels}; leave it out"])
        plain["head"]["n_labels"] = n_labels
    return ModelConfig.from_dict(plain)


def _with_pixels(table: dict[str, Any], images: Images) -> dict[str, Any]:
    """The table with the size and the colours of the data's images; other ones are refused."""
    given = table.get("encoder", {})
    if not isinstance(given, dict) or not isinstance(given.get("input", {}), dict):
        return table  # which is refused with all else that is wrong
    own = given.get("input", {})
    given = {**({"image_size": table["image_size"]} if "image_size" in table else {}), **own}
    told = {"image_size": images.size, "channels": images.channels}
    wrong = [
        f"encoder.input.{name} ({given[name]}) must be the data's, {value}; leave it out"
        for name, value in told.items()
        if given.get(name, value) != value
    ]
    if wrong:
        raise ConfigError(wrong)
    base = presets.preset(table["preset"]).encoder if "preset" in table else None
    kind = own.get("kind", base and base.input.kind)
    if kind not in ("patches", "grid"):
        return table
    encoder = {**table.get("encoder", {}), "input": {"kind": kind, **own, **told}}
    return {**{k: v for k, v in table.items() if k != "image_size"}, "encoder": encoder}


def _without_gaps(table: dict[str, Any], sizes: dict[str, int], n_labels: int) -> dict[str, Any]:
    """The table with the counts put in where a whole configuration leaves them out, so that it can be read at all."""
    gaps: dict[str, Any] = {}
    head = table.get("head")
    if isinstance(head, dict) and head.get("kind") == "labels":
        gaps["head"] = {"n_labels": n_labels, **head}
    for name, size in sizes.items():
        tower = table.get(name)
        if "preset" not in table and isinstance(tower, dict) and isinstance(tower.get("input"), dict):
            tokens = tower["input"].get("kind", "tokens") == "tokens"
            gaps[name] = {"input": {"kind": "tokens", "vocab_size": size, **tower["input"]}} if tokens else {}
    return merge(table, gaps)


def read(path: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """A recipe from a TOML (or JSON) file, with changes like ``train.steps=100``.

    >>> read("nowhere.toml")
    Traceback (most recent call last):
    regard.schema.ConfigError: nowhere.toml: cannot be read (No such file or directory)
    """
    table = read_json(path) if Path(path).suffix == ".json" else read_toml(path)
    return from_dict(Recipe, merge(table, parse_changes(changes)))


def parse_changes(changes: Sequence[str]) -> dict[str, Any]:
    """Changes from a command line as nested tables; values are TOML's, and what is none of those is text.

    >>> parse_changes(["train.steps=100", "model.preset=gpt2"])
    {'train': {'steps': 100}, 'model': {'preset': 'gpt2'}}
    """
    tables: dict[str, Any] = {}
    for change in changes:
        value: Any
        key, equals, text = change.partition("=")
        if not equals or not key.strip(" ."):
            raise ConfigError([f"{change!r} must be a key and its value: train.steps=100"])
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        for part in reversed(key.strip().split(".")):
            value = {part: value}
        tables = merge(tables, value)
    return tables

"""A text's vector is what its tokens' vectors come to, for every model that reads text; a batch is its texts."""

import numpy as np
import pytest
import torch

from encode.models import TEXTS
from laws.cases import CASES, build
from regard import Model, recipe
from regard.config import Contrastive, InputError, Patches, Tokens
from regard.data.tokenizer import Tokenizer
from regard.encode import rows
from regard.nn.heads import pool

BYTES = Tokenizer.train([], recipe.Tokenizer(kind="bytes"))
READERS = [
    name for name, config in CASES.items() if isinstance((config.text or config.encoder or config.last).input, Tokens)
]


def sized(name):
    """A case with a vocabulary of bytes and room for the texts."""

    def larger(tower):
        if tower is None or not isinstance(tower.input, Tokens):
            return tower
        tower = tower.replace(input=tower.input.replace(vocab_size=len(BYTES)))
        return tower.replace(max_len=97) if getattr(tower, "max_len", None) else tower

    config = CASES[name]
    return config.replace(encoder=larger(config.encoder), decoder=larger(config.decoder), text=larger(config.text))


def model_of(name, **options):
    config = sized(name)
    tasks = {"decoder": "generate", "encoder-decoder": "translate"}
    return Model(build(config).requires_grad_(False), tasks.get(config.shape, "fill"), BYTES, **options)


@pytest.mark.parametrize("name", READERS)
def test_a_batch_is_its_texts(name):
    model = model_of(name)
    texts = [*TEXTS[:23], "a", "ein größerer Hund"]
    together = model.embed(texts)
    assert together.shape[0] == len(texts)
    assert together.dtype == np.float32
    alone = np.concatenate([model.embed(text) for text in texts])
    assert np.abs(together - alone).max() < 1e-6
    assert np.abs(model.embed(texts[::-1])[::-1] - together).max() < 1e-6
    assert np.linalg.norm(together, axis=1) == pytest.approx(1, abs=1e-6)
    assert np.abs(together - together[0]).max(axis=1)[1:].min() > 1e-4  # texts differ


@pytest.mark.parametrize("name", ["tiny_encoder", "tiny_decoder", "tiny_encoder_decoder", "tiny_elmo", "tiny_lstm"])
@pytest.mark.parametrize("way", ["mean", "class", "end"])
def test_a_vector_by_hand(name, way):
    model, text = model_of(name), "a dog"
    before = [] if name == "tiny_encoder_decoder" else [BYTES.start]
    after = [BYTES.end] if model.config.encoder else []
    ids = torch.tensor([[*before, *BYTES.encode(text), *after]])
    hidden = model.net.encode(ids).hidden if model.config.encoder else model.net.decode(ids).hidden
    wanted = {"mean": hidden.mean(1), "class": hidden[:, 0], "end": hidden[:, -1]}[way]
    assert np.abs(model.embed(text, pool=way, normalise=False) - wanted.float().numpy()).max() < 1e-6
    model.pooling = way
    assert (model.embed(text, normalise=False) == model.embed(text, pool=way, normalise=False)).all()


def test_a_models_own_way_is_the_default():
    plain, own = model_of("tiny_encoder"), model_of("tiny_encoder", pooling="class")
    assert (plain.embed("a dog") == plain.embed("a dog", pool="mean")).all()
    assert (own.embed("a dog") == plain.embed("a dog", pool="class")).all()
    assert (own.embed("a dog") != plain.embed("a dog")).any()


def test_of_two_encoders_it_is_what_images_are_compared_with():
    model = model_of("tiny_clip")
    assert isinstance(model.config.head, Contrastive)
    ids = torch.tensor([[BYTES.start, *BYTES.encode("a dog"), BYTES.end]])
    pixels = torch.randn(1, 3, model.config.encoder.input.image_size, model.config.encoder.input.image_size).double()
    assert np.abs(model.embed("a dog") - model.net(pixels, ids).text.float().numpy()).max() < 1e-6
    hidden = model.net.encode_text(ids).hidden
    assert (
        np.abs(model.embed("a dog", pool="mean", normalise=False) - pool(hidden, "mean").float().numpy()).max() < 1e-6
    )


def test_a_long_text_is_cut():
    model = model_of("tiny_encoder")
    long = "dog " * 97
    assert np.abs(model.embed(long) - model.embed(long[:95])).max() < 1e-6
    assert rows.make_row(model, BYTES.encode(long)).cut


def test_mistakes():
    model = model_of("tiny_encoder")
    with pytest.raises(InputError, match="text 2 is empty"):
        model.embed(["a", ""])
    with pytest.raises(InputError, match=r"pool \('max'\) must be mean, class or end"):
        model.embed("a", pool="max")  # type: ignore[arg-type]
    assert model.embed([]).shape == (0, model.config.encoder.d_model)
    sees = next(
        name
        for name, config in CASES.items()
        if config.shape == "encoder" and isinstance(config.encoder.input, Patches)
    )
    with pytest.raises(InputError, match="reads patches, not text"):
        Model(build(CASES[sees]), "classify", BYTES).embed("a")

"""Where a captioner looked is the model's own attention, over the cells of the image, and is drawn word by word."""

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from regard import presets, recipe
from regard.cli import app
from regard.config import Patches
from regard.data.tokenizer import Tokenizer
from regard.decode.caption import Caption
from regard.look.caption import SHOWN, CaptionMap, map_caption
from regard.model import Model
from regard.nn import Transformer
from regard.schema import InputError

TEXT = "a red dog"
VIT = presets.tiny_vit(input=Patches(image_size=12, patch_size=3, registers=2)).encoder
MODELS = {
    "vit": presets.tiny_encoder_decoder().replace(encoder=VIT),
    "cnn": presets.tiny_captioner(),
    "xu": presets.tiny_show_attend_tell(),
}
SIDES = {"vit": 4, "cnn": 3, "xu": 3}


def captioner(name):
    torch.manual_seed(7)
    tokens = Tokenizer.train([TEXT], recipe.Tokenizer(kind="characters"))
    config = MODELS[name]
    decoder = config.decoder.replace(input=config.decoder.input.replace(vocab_size=len(tokens)))
    config = config.replace(decoder=decoder)
    return Model(Transformer(config), "caption", tokens)


@pytest.fixture
def photo():
    return np.random.default_rng(3).integers(0, 256, (17, 23, 3), np.uint8)


@pytest.mark.parametrize("name", MODELS)
def test_a_words_map_is_what_the_model_attends_with_when_it_writes_it(name, photo):
    model, side = captioner(name), SIDES[name]
    layer = model.net.attention_layers()["decoder"][-1]
    found = map_caption(model, photo, TEXT, layer=layer, head=0)
    assert (found.words, found.weights.shape) == (("a", "red", "dog"), (3, side, side))
    torch.testing.assert_close(found.weights.sum((1, 2)), torch.ones(3))
    told = {"mean": [0.5] * 3, "std": [0.5] * 3}
    pixels = np.asarray(Image.fromarray(photo).resize((12, 12), Image.Resampling.BICUBIC, box=(3, 0, 20, 17)))
    pixels = (torch.tensor(pixels).permute(2, 0, 1)[None] / 255 - told["mean"][0]) / told["std"][0]
    tokens, ids = model.tokenizer, model.tokenizer.encode(TEXT)
    cache = model.net.start(model.net.encode(pixels), max_len=len(ids) + 1)
    rows = []
    with torch.no_grad():
        for id in [tokens.start, *ids[:-1]]:  # one at a time, as it writes
            step = model.net.decode(torch.tensor([[id]]), cache=cache, capture=[layer]).attended[layer]
            scores = _scores(step)[0, 0, 0, -(side**2) :]  # the first head over the cells, without what comes before
            rows.append(scores.softmax(-1))
    words = [0] * len("a▁") + [1] * len("red▁") + [2] * len("dog")
    own = [torch.stack([row for row, word in zip(rows, words, strict=True) if word == i]).mean(0) for i in range(3)]
    torch.testing.assert_close(found.weights.flatten(1), torch.stack(own), atol=1e-5, rtol=0)


def _scores(step):
    """The dot product over the root of the width, or Bahdanau's network, written out."""
    if step.w is None:
        return step.q @ step.k.transpose(-1, -2) * step.scale
    return torch.einsum("bhtsd,hd->bhts", torch.tanh(step.q[:, :, :, None] + step.k[:, :, None]), step.w)


def test_the_caption_left_out_is_the_models_own(photo, monkeypatch):
    model = captioner("vit")  # which has not learned to say anything
    monkeypatch.setattr(model, "caption", lambda images: [Caption("a dog") for _ in images])
    assert torch.equal(map_caption(model, photo).weights, map_caption(model, photo, "a dog").weights)


def test_a_photo_stays_where_a_word_looked_and_fades_elsewhere():
    weights = torch.zeros(1, 3, 3)
    weights[0, 0, 2] = 1
    image = np.full((33, 33, 3), 40, np.uint8)
    seen = CaptionMap(image=image, words=("dog",), weights=weights, layer="0.cross", head=0).seen(0)
    assert seen.shape == image.shape
    assert (seen[2, 30] == 40).all()  # above, on the right
    assert (seen[30, 2] > 220).all()


@pytest.mark.parametrize("name", ["vit", "xu"])
def test_the_picture_is_written(name, photo, tmp_path):
    pytest.importorskip("matplotlib")
    found = map_caption(captioner(name), photo, "a $red dog with_a <b> hat")
    assert found.image.shape == (SHOWN, SHOWN, 3)
    picture = np.asarray(Image.open(found.save(tmp_path / "a.png")))
    assert min(picture.shape[:2]) > 200
    assert picture.std() > 10
    drawn = found.save(tmp_path / "a.html").read_text()
    assert drawn.count('id="photo-') == 1 + len(found.words)
    assert "<b>" not in drawn
    assert "&lt;b&gt;" in drawn
    with pytest.raises(InputError, match=r"a\.jpeg: a picture is \.png, \.svg or \.html"):
        found.save(tmp_path / "a.jpeg")


def test_what_cannot_be_drawn_is_said(photo, tmp_path):
    with pytest.raises(InputError, match="has no words to look for"):
        map_caption(captioner("cnn"), photo, " ")
    with pytest.raises(InputError, match=r"layer \('9.cross'\): is no cross-attention of this model"):
        map_caption(captioner("cnn"), photo, TEXT, layer="9.cross")
    told = CliRunner().invoke(app, ["caption", "runs/none", "a.png", "b.png", "--map", str(tmp_path / "a.png")])
    assert "goes with one image, not 2" in str(told.exception)

"""Codes of images: the nearest ones, a straight way for gradients, and none that dies."""

import pytest
import torch
import torch.nn.functional as F

from laws.cases import build
from regard import presets
from regard.config import ConfigError, Patches
from regard.nn.codes import Coded, CodesHead
from regard.nn.embed import PatchEmbed

CONFIG = presets.tiny_vq_vae()


def coded(rows: int = 3) -> tuple[CodesHead, torch.Tensor, Coded]:
    model = build(CONFIG)
    torch.manual_seed(5)
    pixels = torch.randn(rows, 3, 15, 15, dtype=torch.float64)
    assert isinstance(model.head, CodesHead)
    hidden = model.encode(pixels).hidden
    return model.head, hidden, model.head.coded(hidden)


def test_each_patch_has_the_nearest_code():
    head, hidden, found = coded()
    z = F.normalize(head.down(hidden), dim=-1)
    apart = torch.cdist(z.flatten(0, 1), F.normalize(head.codes, dim=-1))
    assert torch.equal(found.ids.flatten(), apart.argmin(-1))


def test_what_is_painted_is_a_function_of_the_codes_alone():
    head, hidden, found = coded()
    torch.testing.assert_close(head.paint_ids(found.ids), head(hidden))
    assert not torch.equal(head.paint_ids(found.ids), head.paint_ids((found.ids + 1) % 19))


def test_patches_are_put_back_where_they_were_cut():
    head, _, _ = coded()
    image = torch.arange(3 * 15 * 15, dtype=torch.float64).view(1, 3, 15, 15)
    embed = build(CONFIG).encoder.embed  # type: ignore[union-attr]
    assert isinstance(embed, PatchEmbed)
    cut: list[torch.Tensor] = []
    embed.project.register_forward_pre_hook(lambda _, given: cut.append(given[0]))
    embed(image)
    head.pixels = torch.nn.Identity()  # type: ignore[assignment]
    del head.painter
    head.painter = lambda vectors, layout, embed: (cut[0], {})  # type: ignore[assignment]
    assert torch.equal(head.paint(torch.zeros(1, 25, 5)), image)


def test_the_painters_gradient_goes_straight_through():
    head, _, found = coded()
    vectors = found.vectors.detach().requires_grad_()
    codes = F.embedding(found.ids, found.codes).detach().requires_grad_()
    [through] = torch.autograd.grad(head.painted(found._replace(vectors=vectors)).square().sum(), vectors)
    [of_codes] = torch.autograd.grad(head.paint(codes).square().sum(), codes)
    torch.testing.assert_close(through, of_codes)


def test_the_distances_are_the_papers_as_the_temperature_falls(monkeypatch):
    head, _, found = coded()
    own = F.embedding(found.ids, found.codes)
    squared = (found.vectors - own).square().sum(-1).mean(-1)
    monkeypatch.setattr("regard.nn.codes.TEMPERATURE", 1e-9)
    monkeypatch.setattr("regard.nn.codes.ALIKE", 0.0)
    torch.testing.assert_close(head.distances(found), (1 + head.config.commitment) * squared)


def test_codes_that_nobody_uses_come_to_where_patches_are():
    """One code among all patches, the others far away: after steps of Adam on the codes alone, most are in use."""
    head, _, _ = coded()
    torch.manual_seed(7)
    around = torch.tensor([1.0, 0, 0, 0, 0], dtype=torch.float64)
    with torch.no_grad():
        head.codes.copy_(0.1 * torch.randn(19, 5) - around)
        head.codes[11] = around
    vectors = F.normalize(0.3 * torch.randn(1, 997, 5, dtype=torch.float64) + around, dim=-1)

    def found() -> Coded:
        codes = F.normalize(head.codes, dim=-1)
        products = vectors @ codes.T
        return Coded(vectors, products.argmax(-1), codes, products)

    before = len(found().ids.unique())
    optimizer = torch.optim.Adam([head.codes], lr=0.03, eps=1e-9)
    for _ in range(200):
        optimizer.zero_grad()
        head.distances(found()).sum().backward()
        optimizer.step()
    assert before <= 2
    assert len(found().ids.unique()) >= 17


@pytest.mark.parametrize("changes", [{"class_token": True}, {"class_token": False, "registers": 2}])
def test_every_position_under_codes_is_a_patch(changes):
    given = Patches(**{"image_size": 15, "patch_size": 3, **changes})
    with pytest.raises(ConfigError, match="a code for every patch"):
        presets.tiny_vq_vae(input=given).validate()


def test_codes_need_patches():
    with pytest.raises(ConfigError, match="needs a Transformer over patches under it, not tokens"):
        presets.tiny_encoder(head=CONFIG.head).validate()

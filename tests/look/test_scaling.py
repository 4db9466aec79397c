"""What the division by the square root of the width buys, as measured."""

import json

import torch
from typer.testing import CliRunner

from regard.cli import app
from regard.look import scaling as module
from regard.look.scaling import NAMES, WIDTHS, scaling


def test_the_start_is_what_softmax_says():
    """By the written-out Jacobian of softmax: w_j (1[i = j] - w_i)."""
    d, seed = 7, 5
    [dot, scaled] = module._starts(d, seed)
    draw = torch.Generator().manual_seed(seed)
    q, k = torch.randn(module.QUERIES, d, generator=draw), torch.randn(module.KEYS, d, generator=draw)
    right = torch.randint(module.KEYS, (module.QUERIES,), generator=draw)
    for one, scale in ((dot, 1.0), (scaled, 7**-0.5)):
        weights = torch.softmax(q.double() @ k.double().T * scale, -1)
        wanted, entropy = 0.0, 0.0
        for row, at in zip(weights, right.tolist(), strict=True):
            jacobian = row[at] * (torch.eye(module.KEYS, dtype=torch.float64)[at] - row)
            wanted += float(jacobian.norm()) / module.QUERIES
            entropy -= float((row * row.log2()).sum()) / module.QUERIES
        assert abs(one.gradient - wanted) < 1e-5
        assert abs(one.entropy - entropy) < 1e-3


def test_wide_keys_need_the_division():
    found = scaling(steps=3)
    by = {name: [one for one in found.starts if one.score == name] for name in NAMES}
    assert [one.d for one in by["dot"]] == list(WIDTHS)
    assert [one.entropy for one in by["dot"]] == sorted((one.entropy for one in by["dot"]), reverse=True)
    assert max(one.entropy for one in by["scaled_dot"]) - min(one.entropy for one in by["scaled_dot"]) < 0.3
    assert by["dot"][-1].gradient < by["scaled_dot"][-1].gradient / 2
    assert found.losses == scaling(steps=3).losses
    assert found.losses["dot"] != found.losses["scaled_dot"]


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "scaling", lambda: scaling(steps=2, widths=[4, 16]))
    for name in ("a.png", "a.svg"):
        said = CliRunner().invoke(app, ["look", "scaling", "--out", str(tmp_path / name), "--json"])
        assert said.exit_code == 0, said.output
        assert json.loads(said.stdout).keys() == {"starts", "losses"}
        assert (tmp_path / name).stat().st_size > 5_000
        assert said.stderr == f"{tmp_path / name}: written\n"
    told = CliRunner().invoke(app, ["look", "scaling"]).stdout
    assert "divided by √d" in told
    assert "the loss after 2 steps is" in told
    for wrong, message in (
        (["look", "scalin"], "look (scalin) is neither a model nor a lesson; did you mean scaling?"),
        (["look", "scaling", "--out", "a.txt"], "--out (a.txt) must be a .html, .png or .svg file"),
    ):
        assert str(CliRunner().invoke(app, wrong).exception) == message

"""A model that is trained over kernels is the model: where triton is (in bfloat16, as kernels are used; on a machine
without a GPU in its interpreter, in float32, and the graph is only traced)."""

import pytest
import torch

from nn.test_steps import CUDA, DEVICE, needs_kernels
from nn.test_variable_lengths import of_dynamo, of_graphs
from regard import presets
from regard.nn import Transformer, attention, norms, products
from regard.train.compiled import compiled as train_compiled

pytestmark = [
    needs_kernels,
    pytest.mark.filterwarnings("ignore:overflow encountered"),  # numpy's, of an exponential that may be infinite
    of_dynamo,
    of_graphs,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
]
WIDTHS = {"d_model": 64, "n_heads": 4, "d_head": 16, "d_value": 16, "d_ff": 128}


@pytest.fixture
def everywhere(monkeypatch):
    """Kernels for what a GPU would have in half precision; the names of those that were asked for."""
    asked = set()

    def always(name):
        def fits(*_):
            asked.add(name)
            return True

        return fits

    for module, name in ((products, "_fits"), (norms, "_fits"), (attention, "_has_short")):
        monkeypatch.setattr(module, name, always(name))
    monkeypatch.setattr(attention, "FEW_TRAINED", 0)  # a CPU's own way
    return asked


def some_ids(n):
    return torch.randint(2, 101, (3, n), generator=torch.Generator().manual_seed(n)).to(DEVICE)


SHAPES = {
    "post": (presets.tiny_encoder_decoder, {"norm_order": "post", "activation": "relu"}, (17, 13)),
    "pre": (presets.tiny_encoder_decoder, {"norm_order": "pre", "activation": "gelu"}, (17, 13)),
    "rms": (presets.tiny_decoder, {"norm": "rms", "norm_order": "pre", "activation": "gelu_tanh"}, (19,)),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_the_models_own(shape, compiled, everywhere, monkeypatch):
    make, changes, lengths = SHAPES[shape]
    config = make(**WIDTHS, **changes, bias=True, dropout=0.0, embed_dropout=0.0, mlp_dropout=0.0)
    torch.manual_seed(1)
    model, ids = Transformer(config).to(DEVICE), [some_ids(n) for n in lengths]

    def loss(*ids):
        with torch.autocast("cuda", torch.bfloat16, enabled=CUDA):
            return model(*ids).float().logsumexp(-1).sum()

    function = loss
    if compiled:  # on a GPU as a training is
        function = train_compiled(loss, torch.device("cuda")) if CUDA else torch.compile(loss, backend="aot_eager")
    weights = list(model.parameters())
    found = torch.autograd.grad(function(*ids), weights)
    assert everywhere == {"_fits", "_has_short"}
    monkeypatch.undo()
    wanted = torch.autograd.grad(loss(*ids), weights)
    for (name, _), mine, its in zip(model.named_parameters(), found, wanted, strict=True):
        if CUDA:
            assert (mine - its).norm() <= 0.05 * its.norm(), name
        else:
            torch.testing.assert_close(mine, its, atol=2e-5, rtol=2e-5, msg=name)

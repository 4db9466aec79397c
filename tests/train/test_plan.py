"""What ``plan`` says is what torch says: parameters, FLOPs, and the bytes that wait for the backward pass."""

import json
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch._functorch.aot_autograd import aot_module
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

import ready
from laws.cases import CASES, an_input, without_dropout
from regard import presets
from regard.config import InputError, Patches, Pooled, Positions, Recurrent, Stack, Tokens, Vocabulary
from regard.look.page import as_text
from regard.nn import Transformer
from regard.nn.blocks import Block
from regard.nn.codes import CodesHead
from regard.nn.lora import add_lora
from regard.nn.products import ACTIVATIONS
from regard.recipe import Data, Files, Train
from regard.train import objectives, tune
from regard.train.objectives import token_loss
from regard.train.pieces import Load, linear, pieces, scores, total
from regard.train.plan import PETAFLOP_DAY, SCORES_AT_A_TIME, USABLE, memory, plan, trained_parameters

B, T = 3, 13
NAMED = {name: presets.preset(name) for name in presets.names()}
SIZES = {f"gpt2 {size}": presets.gpt2(size) for size in presets.GPT2_SIZES}
SIZES |= {f"gpt3 {size}": presets.gpt3(size) for size in presets.GPT3_SIZES}
SIZES["bert, two heads"] = presets.bert_base(head=presets.MASKED_TOKENS, pair_head=Pooled(n_labels=2, dense=True))
MEDIUM = ("gpt2", "llama_small", "vaswani_base", "bert_base", "vit_b16", "clip_b32", "bahdanau", "show_attend_tell")


def on_meta(config) -> Transformer:
    with torch.device("meta"):
        model = Transformer(config)
    return model.to("meta")  # the fixed tables too


# -- parameters --------------------------------------------------------------------------


@pytest.mark.parametrize("config", [*NAMED.values(), *SIZES.values(), *CASES.values()], ids=[*NAMED, *SIZES, *CASES])
def test_parameters_are_the_models(config):
    assert total(pieces(config, Load(rows=B, length=T))).parameters == on_meta(config).n_parameters()


# -- FLOPs -------------------------------------------------------------------------------


def counted(config, *, training: bool, rows: int = B, length: int = T) -> int:
    """FLOPs of a pass with the loss of training, by torch's counter. The meta device writes attention out, so that the
    counter sees its products; a CPU's fused kernel is not in its book."""
    model = on_meta(config).train().requires_grad_(training)

    def given(tower):
        return an_input(tower, rows, length, torch.float32).to("meta")

    with FlopCounterMode(display=False) as counter:
        if config.shape == "two encoders":
            loss = model(given(config.encoder), given(config.text)).logits.sum()
        else:
            memory = None if config.encoder is None else model.encode(given(config.encoder))
            hidden = None if memory is None else memory.hidden if model.mix is None else model.mix(memory.layers)
            if config.decoder is not None:
                hidden = model.decode(given(config.decoder), memory).hidden
            if isinstance(config.head, Vocabulary):
                if hidden.shape[-1] != config.d_scored:
                    hidden = hidden.unflatten(-1, (2, -1))
                hidden = model.head.transformed(hidden)
                targets = torch.zeros(hidden.shape[:-1], dtype=torch.long, device="meta")
                loss, _ = token_loss(
                    hidden, model.vocabulary_table(), targets, bias=model.head.bias, chunk=999
                )  # an addmm_ is not in its book either
            elif isinstance(model.head, CodesHead):  # whose codes learn beside what is painted
                found = model.head.coded(hidden)
                loss = model.head.painted(found).sum() + model.head.distances(found).sum()
            else:
                loss = model.logits(hidden).sum()
        if training:
            loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", [*CASES, *MEDIUM])
def test_flops_are_the_counters(name):
    config = CASES.get(name) or NAMED[name]
    whole = total(pieces(config, Load(rows=B, length=T)))
    # Exact for Transformers; a recurrent layer's first state needs no gradient, which nobody subtracts.
    towers = (config.encoder, config.decoder)
    within = 0.02 if any(isinstance(tower, Recurrent) for tower in towers) else 1e-9
    assert whole.forward == pytest.approx(counted(config, training=False), rel=1e-9)
    assert whole.training == pytest.approx(counted(config, training=True), rel=within)


def test_fused_attention_forms_its_scores_again():
    b, h, t, s, d, e = 2, 3, 5, 7, 11, 13
    q, k, v, out = (b, h, t, d), (b, h, s, d), (b, h, s, e), (b, h, t, e)
    (piece,) = scores(Load(rows=b, length=t), t, s, h, h, d, d, e, "scaled_dot", d)
    assert piece.forward == sdpa_flop_count(q, k, v)
    assert piece.backward + piece.again == sdpa_backward_flop_count(out, q, k, v)


def test_gpt3_takes_what_its_paper_says():
    gpt3 = plan(presets.gpt3(), tokens=300e9)
    assert gpt3.rule_of_thumb / PETAFLOP_DAY == pytest.approx(3640, rel=0.002)
    # Counted, attention's scores come on top, all pairs of them in every layer.
    assert gpt3.budget / gpt3.rule_of_thumb == pytest.approx(1 + 12 * 96 * 12_288 * 2048 / (6 * 174.6e9), rel=0.002)


def test_the_base_translator_takes_less_than_its_papers_gpus_could_do():
    base = plan(presets.vaswani_base(), Train(steps=100_000, batch_tokens=25_000), tokens=100_000 * 25_000)
    assert base.budget == pytest.approx(0.95e18, rel=0.01)
    paper = 8 * 12 * 3600 * 9.5e12  # GPUs, hours, the rate that the paper takes for a P100
    assert paper == pytest.approx(3.3e18, rel=0.01)
    assert base.budget / paper == pytest.approx(0.29, abs=0.01)


# -- memory: what waits for the backward pass --------------------------------------------

ROWS, LENGTH = 7, 48
_SMALL = {"d_model": 96, "n_heads": 6, "d_head": None, "d_value": None, "d_ff": 320, "n_layers": 2, "max_len": 64}
_DROP = {"dropout": 0.1, "embed_dropout": 0.1, "mlp_dropout": 0.1}
KEEPS = {
    "gpt": presets.tiny_decoder(**_SMALL),
    "gpt, dropout": presets.tiny_decoder(**_SMALL, **_DROP),
    "quick": presets.tiny_decoder(**_SMALL, activation="gelu_quick"),
    "alibi": presets.tiny_decoder(**_SMALL, positions=Positions(kind="alibi")),
    "bert": presets.tiny_encoder(**_SMALL),
    "translator": presets.tiny_encoder_decoder(**_SMALL),
    "translator, dropout": presets.tiny_encoder_decoder(**_SMALL, **_DROP),
    "pre-norm translator": presets.tiny_encoder_decoder(**_SMALL, norm_order="pre", activation="silu"),
    "vit": presets.tiny_vit(**{**_SMALL, "max_len": None}, input=Patches(image_size=24, patch_size=3)),
}
COMPILED = {
    "llama": presets.tiny_llama(**{**_SMALL, "n_kv_heads": 2}),
    "qk norm": presets.tiny_decoder(**{**_SMALL, "n_kv_heads": 2, "qk_norm": True}),
}


class Tower(torch.nn.Module):
    """A model up to its head, over inputs of its own."""

    def __init__(self, config):
        super().__init__()
        self.model = Transformer(config).train()
        towers = [tower for tower in (config.encoder, config.decoder) if tower is not None]
        self.inputs = [an_input(tower, ROWS, LENGTH, torch.float32) for tower in towers]

    def forward(self, *inputs, layout=None):
        if self.model.config.decoder is None:
            return self.model.encode(inputs[0], layout).hidden
        memory = None if len(inputs) == 1 else self.model.encode(inputs[0], layout)
        return self.model.decode(inputs[-1], memory, layout=layout).hidden


def planned(config, *, half: bool, compiled: bool, padded: bool = False) -> int:
    load = Load(rows=ROWS, length=LENGTH, half=half, compiled=compiled, padded=padded)
    body = total(piece for piece in pieces(config, load) if piece.part not in ("vocabulary", "head"))
    return body.kept + (2 * body.copied if half else 0)


@pytest.mark.parametrize(
    ("name", "padded"), [*((name, False) for name in KEEPS), *((name, True) for name in KEEPS if name != "vit")]
)
def test_autograd_keeps_what_is_planned(name, padded, monkeypatch):
    monkeypatch.setattr("regard.nn.attention.FEW_TRAINED", 0)  # the fused kernel, as on a GPU
    monkeypatch.setattr("regard.nn.linear.by_onednn", tuple)  # nor are there rows of zeros
    config = without_dropout(KEEPS[name])  # a CPU's dropout keeps numbers instead of bytes
    tower = Tower(config)
    own = {t.untyped_storage().data_ptr() for t in (*tower.parameters(), *tower.buffers(), *tower.inputs)}
    kept = {}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = tower(*tower.inputs, layout=torch.full((ROWS,), LENGTH - 5) if padded else None)
    kept.pop(out.untyped_storage().data_ptr(), None)  # the head's
    found = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert planned(config, half=False, compiled=False, padded=padded) == pytest.approx(found, rel=0.01)


PARTITIONED = [*((name, True) for name in (*KEEPS, *COMPILED)), ("gpt", False), ("translator, dropout", False)]
SOON = [("translator, dropout", True), ("qk norm", True), ("gpt", False)]  # the others are slow as well, and much alike


@pytest.mark.parametrize(
    ("name", "half"), [pytest.param(*case, marks=() if case in SOON else pytest.mark.slow) for case in PARTITIONED]
)
def test_the_compilers_partitioner_keeps_what_is_planned(name, half, monkeypatch):
    # As compiled for a GPU: no checks that read values, a dropout that keeps its mask (as ours there does, but for a few),
    # its ReLU in half precision, the fused kernel in every.
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    monkeypatch.setattr("regard.nn.attention.attend", _fused)
    if half:
        monkeypatch.setitem(ACTIVATIONS, "relu", _relu)
    config = {**KEEPS, **COMPILED}[name]
    tower, kept = Tower(config), []

    def forward_graph(graph, _):
        kept.extend(next(iter(reversed(graph.graph.nodes))).args[0][1:])  # the first is the output
        return graph

    traced = aot_module(
        tower,
        fw_compiler=forward_graph,
        bw_compiler=lambda graph, _: graph,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        traced(*tower.inputs)
    # Weights, turned or not, and inputs are there anyway; what attention gave is kept as heads and joined, in one memory.
    values = [
        node.meta["val"]
        for node in kept
        if not node.name.startswith(("alias", "detach")) and "placeholder" not in (node.op, _below(node).op)
    ]
    found = sum(value.numel() * value.element_size() for value in values if isinstance(value, torch.Tensor))
    assert planned(config, half=half, compiled=True) == pytest.approx(found, rel=0.02)


@torch.library.custom_op("regard_tests::relu", mutates_args=())
def _relu(x: torch.Tensor) -> torch.Tensor:
    """As a GPU's kernels have it: its output tells its gradient, and the compiler does not see how."""
    return x.relu()


@torch.library.custom_op("regard_tests::relu_gradient", mutates_args=())
def _relu_gradient(out: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return gradient * (out > 0)


_relu.register_fake(torch.empty_like)
_relu_gradient.register_fake(lambda out, gradient: torch.empty_like(gradient))
_relu.register_autograd(
    lambda ctx, gradient: _relu_gradient(*ctx.saved_tensors, gradient),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)


def _fused(q, k, v, mask, *, scale, w, dropout):
    assert (w, mask.alive) == (None, None)
    more = q.shape[1] > k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, mask.bias, dropout, mask.is_causal, scale=scale, enable_gqa=more)


def _below(node):
    while node.name.startswith("permute"):
        node = node.args[0]
    return node


def _gpt2():
    config = presets.gpt2()
    return config.replace(decoder=config.decoder.replace(dropout=0.0, attn_dropout=0.0, embed_dropout=0.0))


@pytest.mark.parametrize(
    ("config", "rows", "length", "compiled", "half", "measured"),
    # One H200, torch 2.11: torch.cuda.max_memory_allocated in MB. In bfloat16 by benchmarks/train_step.py, with the loss's
    # kernel; in float32, which has none, by benchmarks/plan_memory.py.
    [
        (_gpt2(), 32, 1024, True, True, 13_000),  # to a tenth of a GB
        (presets.vaswani_base(), 800, 32, True, True, 7_600),  # likewise
        (_gpt2(), 32, 1024, False, False, 26_500),
        (_gpt2(), 8, 1024, False, False, 9_834),
        (presets.vaswani_base(), 200, 32, False, False, 5_318),
    ],
)
def test_peak_is_what_a_gpu_showed(config, rows, length, compiled, half, measured):
    load = Load(rows=rows, length=length, compiled=compiled, half=half)
    assert memory(config, load).peak / 1e6 == pytest.approx(measured, rel=0.03)


def test_the_losss_chunk_is_known_here():
    assert objectives.CHUNK["cuda"] == SCORES_AT_A_TIME
    assert objectives.ROW_MULTIPLE["cuda"] == 64


# -- memory: kinds and devices -----------------------------------------------------------


def test_kinds():
    config, load = presets.gpt2(), Load(rows=2, length=1024, half=False)
    n = 124_439_808
    kinds = memory(config, load)
    assert (kinds.weights, kinds.gradients, kinds.optimizer) == (4 * n, 4 * n, 8 * n)
    assert memory(config, load, averaged=True).optimizer == 12 * n
    assert kinds.peak == kinds.weights + kinds.optimizer + kinds.activations + kinds.loss
    adding = memory(config, load, accumulates=True)
    assert adding.peak == kinds.peak + kinds.gradients
    # Where a batch is small, the end of the backward pass is the peak.
    small = memory(config, Load(rows=1, length=2))
    assert small.activations + small.loss < small.gradients
    assert small.peak == small.weights + small.gradients + small.optimizer


def test_sharding_divides_weights_gradients_and_optimizer():
    config, load = presets.gpt2("xl"), Load(rows=1, length=1024)
    alone, shared = memory(config, load), memory(config, load, devices=8)
    assert (shared.gradients, shared.optimizer) == (alone.gradients / 8, alone.optimizer / 8)
    n = 1_557_611_200
    assert 4 * n / 8 < shared.weights < 4 * n / 4  # with what is gathered
    assert (shared.activations, shared.loss) == (alone.activations, alone.loss)
    assert memory(config, load, devices=8, accumulates=True).gradients == alone.gradients


def test_two_passes_keep_twice_as_much():
    config, load = presets.tiny_decoder(), Load(rows=B, length=T)
    assert memory(config, load, passes=2).activations == 2 * memory(config, load).activations
    dropped = plan(config, Train(steps=1, r_drop=1.0))
    assert dropped.per_token(dropped.whole.forward) == 2 * dropped.whole.forward / (
        dropped.load.rows * dropped.row_tokens
    )


@pytest.mark.parametrize("gpus", [1, 4])
def test_most_tokens_fit_and_a_row_more_does_not(gpus):
    found = plan(presets.gpt2(), gpus=gpus, gpu_memory=24e9)
    site = found.sites[-1]
    for precision, tokens in site.most_tokens.items():
        assert tokens % 1024 == 0
        rows, half = tokens // 1024, precision == "bfloat16"

        def peak(rows, half=half):
            return memory(presets.gpt2(), Load(rows=rows, length=1024, half=half), devices=gpus).peak

        assert peak(rows) <= USABLE * 24e9 < peak(rows + 1)


# -- a recipe's batch --------------------------------------------------------------------


def _data(task, **given):
    files = Files(source=("a",), target=("b",)) if task == "translate" else Files(files=("a",))
    return Data(task=task, train=files, **given)


def test_a_batch_is_shared_out_over_parts_and_gpus():
    train = Train(steps=1, batch_tokens=65_536, micro_batches=2)
    one, four = plan(presets.gpt2(), train, gpus=4).sites
    assert (one.rows, four.rows) == (32, 8)
    assert [site.gpus for site in plan(presets.gpt2(), train).sites] == [1]
    assert plan(presets.gpt2(), Train(steps=1, batch_tokens=5)).load.rows == 1


@pytest.mark.parametrize(
    ("config", "train", "data", "length", "padded", "scored"),
    [
        (presets.gpt2(), Train(steps=1), _data("generate"), 1024, False, 1.0),
        (presets.gpt2(), Train(steps=1, row_tokens=512), _data("generate"), 512, False, 1.0),
        (presets.bert_base(head=presets.MASKED_TOKENS), Train(steps=1), _data("fill"), 512, False, 0.15),
        (presets.vaswani_base(), Train(steps=1), _data("translate"), 32, True, 1.0),
        (presets.vaswani_base(), Train(steps=1, packed=True), _data("translate", max_tokens=19), 19, False, 1.0),
        (presets.bert_base(), Train(steps=1), _data("classify"), 32, True, 1.0),
        (presets.vaswani_base(), Train(steps=1, row_tokens=61), None, 61, False, 1.0),
    ],
)
def test_rows_are_the_tasks(config, train, data, length, padded, scored):
    load = plan(config, train, data).load
    assert (load.length, load.padded, load.scored) == (length, padded, scored)


def test_rows_of_images_are_their_patches():
    assert plan(presets.vit_b16()).row_tokens == 197
    assert plan(presets.clip_b32()).row_tokens == 77


def test_days():
    found = plan(presets.gpt2(), tokens=1e9, gpus=3, flops=1e12)
    assert found.days(1) == pytest.approx(found.budget / 1e12 / 86_400)
    assert found.days(3) == pytest.approx(found.days(1) / 3)
    assert plan(presets.gpt2()).days(1) is None
    assert plan(presets.vit_b16(), tokens=1e9).rule_of_thumb is None  # a patch meets no table of tokens


@pytest.mark.parametrize("wrong", [{"gpus": 0}, {"gpu_memory": -1.0}, {"tokens": math.nan}, {"flops": math.inf}])
def test_numbers_that_cannot_be(wrong):
    with pytest.raises(InputError, match=rf"{next(iter(wrong))} \(.*\) must be above 0"):
        plan(presets.gpt2(), **wrong)


def test_a_product_below_which_nothing_learns_has_one_gradient():
    assert linear(Load(rows=1, length=1), "head", 2, 3, 5, lowest=True).backward == 2 * 2 * 3 * 5


# -- the page ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMED)
def test_every_preset_has_a_page_of_80_columns(name):
    found = plan(NAMED[name], gpus=8, tokens=1e9)
    text = as_text(found, 200)
    assert max(map(len, text.splitlines())) <= 80
    assert f"{found.whole.parameters:,} parameters" in text
    recurrent = any(not isinstance(t, Stack) or not isinstance(t.input, Tokens | Patches) for t in found_towers(found))
    assert ("convolutions: an estimate" in text) == (recurrent and "vec2seq" not in name)
    json.dumps(found.to_dict(), allow_nan=False)


def found_towers(found):
    return [t for t in (found.config.encoder, found.config.decoder, found.config.text) if t is not None]


def run(*arguments, cwd=None):
    return ready.run("plan", *arguments, cwd=cwd, env={"FORCE_COLOR": ""})


def test_the_command_says_it_in_json():
    result = run("gpt2", "train.batch_tokens=32768", "train.steps=7", "--gpus", "4", "--gpu-memory", "141", "--json")
    page = json.loads(result.stdout)
    assert page["parameters"] == 124_439_808
    assert page["tokens"] == 7 * 32_768
    assert [site["rows"] for site in page["memory"]] == [32, 8]
    assert page["gpu_memory"] == 141e9
    assert page["memory"][0]["bfloat16"]["peak"] == memory(presets.gpt2(), Load(rows=32, length=1024)).peak


def test_the_command_reads_recipes_and_models(tmp_path):
    (tmp_path / "model.toml").write_text('[model]\npreset = "gpt2"\n[model.decoder]\nn_layers = 3\n')
    page = json.loads(run("model.toml", "--json", cwd=tmp_path).stdout)
    assert page["parameters"] == 124_439_808 - 9 * 7_087_872
    assert page["tokens"] is None
    (tmp_path / "recipe.toml").write_text(
        '[data]\ntask = "translate"\ntrain = { source = "a", target = "b" }\ntokenizer = { vocab_size = 500 }\n'
        '[model]\npreset = "vaswani_base"\n[train]\nsteps = 11\nbatch_tokens = 640\n'
    )
    page = json.loads(run("recipe.toml", "--json", cwd=tmp_path).stdout)
    assert page["parameters"] == 63_082_496 - (37_000 - 500) * 512
    assert (page["tokens"], page["memory"][0]["rows"]) == (7_040, 20)


def test_the_command_needs_no_torch():
    script = "import sys; from regard.cli import app; app(['plan', 'gpt3'], standalone_mode=False); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout.splitlines()[0] == "decoder, 96 layers, 174,604,259,328 parameters"
    assert result.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gtp2"], "preset ('gtp2') is not known; did you mean gpt2?"),
        (["gpt2", "--gpus", "0"], "gpus (0) must be above 0"),
        (["gpt2", "train.step=5"], "train.step: unknown key; did you mean steps?"),
        (["no.toml"], "no.toml: cannot be read (No such file or directory)"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, message):
    result = run(*arguments)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"error: {message}\n")


@pytest.mark.parametrize("name", ["tiny_encoder_decoder", "tiny_llama", "tiny_decoder", "tiny_tagger"])
@pytest.mark.parametrize("how", [{"lora": 3}, {"lora": 3, "train_last": 1}, {"train_last": 1}, {"train_last": 0}])
def test_what_is_trained_is_counted(name, how):
    """As many as a trainer trains; a norm outside the blocks is not counted."""
    config, train = presets.preset(name), Train(steps=1, **how)
    model = Transformer(config)
    if "lora" in how:
        add_lora([block for block in model.modules() if isinstance(block, Block)], how["lora"], 1.0)
    moving = {n: p.numel() for n, p in model.named_parameters() if tune.is_trained(n, config, train)}
    assert trained_parameters(config, train) == sum(size for n, size in moving.items() if "stack.norm" not in n)

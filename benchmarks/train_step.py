"""One training step (forward, loss, backward, AdamW) of regard and its peers on the same batches: on a GPU one after
the other in one process, on a CPU in turns, each in a process of its own.

    python benchmarks/train_step.py                          # 2 CPU cores: small models, eager, float32
    python benchmarks/train_step.py --precision bfloat16     # likewise in bfloat16
    python benchmarks/train_step.py --nanogpt carry/nanogpt  # a GPU: full size, compiled, bfloat16

Peers: nanoGPT (a checkout of it, given by --nanogpt), Hugging Face transformers, torch.nn.Transformer. Each
peer's loss is compiled together with its model, which is kinder to it than its own scripts are. The rows marked
"graphs" give the strongest peers our compile settings too, CUDA graphs among them.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from measure import measure, measure_in_turns, report
from regard import presets
from regard.memory import keep_freed_memory
from regard.nn import Transformer, sinusoid
from regard.train.compiled import compiled
from regard.train.objectives import token_loss

SMOOTHING = 0.1


@dataclass
class Work:
    """Sizes of one workload."""

    batch: int
    length: int
    vocab: int
    layers: int
    width: int
    heads: int
    dropout: float


GPU_GPT = Work(batch=32, length=1024, vocab=50_257, layers=12, width=768, heads=12, dropout=0.0)
CPU_GPT = Work(batch=12, length=64, vocab=65, layers=4, width=128, heads=4, dropout=0.0)
GPU_TRANSLATOR = Work(batch=800, length=32, vocab=37_000, layers=6, width=512, heads=8, dropout=0.1)
CPU_TRANSLATOR = Work(batch=256, length=16, vocab=8_000, layers=4, width=128, heads=4, dropout=0.1)


def step_of(loss_of, model: nn.Module, batches: list, device: torch.device, how: str, half: bool | None = None):
    """A callable that trains one step on the next batch; in bfloat16 (``half``) by default where there is a GPU."""
    half = device.type == "cuda" if half is None else half
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    loss_fn = {
        "eager": lambda: loss_of,
        "plain": lambda: torch.compile(loss_of),
        "ours": lambda: compiled(loss_of, device),
    }[how]()
    state = {"i": 0}

    def step():
        batch = batches[state["i"] % len(batches)]
        state["i"] += 1
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            loss = loss_fn(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


# -- language models --------------------------------------------------------------------


def ours_gpt(work: Work, device):
    config = presets.gpt2().decoder.replace(
        input=presets.Tokens(vocab_size=work.vocab), max_len=work.length, n_layers=work.layers, d_model=work.width,
        n_heads=work.heads, d_ff=4 * work.width, dropout=work.dropout, attn_dropout=0.0, embed_dropout=work.dropout,
    )  # fmt: skip
    model = Transformer(presets.gpt2().replace(decoder=config)).to(device)

    def loss(ids, targets):
        total, count = token_loss(model.decode(ids).hidden, model.vocabulary_table(), targets)
        return total / count

    return model, loss


def nano_gpt(work: Work, device):
    from model import GPT, GPTConfig  # nanoGPT's own file

    # Its vocabulary is padded to a multiple of 64 by its authors; with biases, as GPT-2 has them.
    vocab = -(-work.vocab // 64) * 64
    config = GPTConfig(
        block_size=work.length, vocab_size=vocab, n_layer=work.layers, n_head=work.heads, n_embd=work.width,
        dropout=work.dropout, bias=True,
    )  # fmt: skip
    model = GPT(config).to(device)
    return model, lambda ids, targets: model(ids, targets)[1]


def hf_gpt(work: Work, device):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=work.vocab, n_positions=work.length, n_embd=work.width, n_layer=work.layers, n_head=work.heads,
        resid_pdrop=work.dropout, embd_pdrop=work.dropout, attn_pdrop=0.0, use_cache=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(device).train()

    def loss(ids, targets):
        return F.cross_entropy(model(ids).logits.flatten(0, 1), targets.flatten())

    return model, loss


# -- translators ------------------------------------------------------------------------


def ours_translator(work: Work, device):
    base = presets.vaswani_base(vocab_size=work.vocab)
    sizes = dict(n_layers=work.layers, d_model=work.width, n_heads=work.heads, d_ff=4 * work.width)
    drop = dict(dropout=work.dropout, embed_dropout=work.dropout)
    config = base.replace(encoder=base.encoder.replace(**sizes, **drop), decoder=base.decoder.replace(**sizes, **drop))
    model = Transformer(config).to(device)

    def loss(source, target, wanted):
        hidden = model.decode(target, model.encode(source)).hidden
        total, count = token_loss(hidden, model.vocabulary_table(), wanted, smoothing=SMOOTHING)
        return total / count

    return model, loss


class PlainTranslator(nn.Module):
    """torch.nn.Transformer with the embedding, positions and tied output that it leaves to its user."""

    def __init__(self, work: Work):
        super().__init__()
        self.embed = nn.Embedding(work.vocab, work.width)
        nn.init.normal_(self.embed.weight, std=work.width**-0.5)
        self.core = nn.Transformer(
            work.width, work.heads, work.layers, work.layers, 4 * work.width, work.dropout, batch_first=True
        )
        self.dropout = nn.Dropout(work.dropout)
        self.register_buffer("positions", sinusoid(work.length, work.width))
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(work.length))

    def forward(self, source, target):
        embed = lambda ids: self.dropout(self.embed(ids) * self.embed.embedding_dim**0.5 + self.positions)  # noqa: E731
        out = self.core(embed(source), embed(target), tgt_mask=self.causal, tgt_is_causal=True)
        return F.linear(out, self.embed.weight)


def smoothed(logits, wanted):
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), label_smoothing=SMOOTHING)


def torch_translator(work: Work, device):
    model = PlainTranslator(work).to(device).train()
    return model, lambda source, target, wanted: smoothed(model(source, target), wanted)


def marian_translator(work: Work, device):
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=work.vocab, d_model=work.width, encoder_layers=work.layers, decoder_layers=work.layers,
        encoder_attention_heads=work.heads, decoder_attention_heads=work.heads, encoder_ffn_dim=4 * work.width,
        decoder_ffn_dim=4 * work.width, dropout=work.dropout, activation_function="relu", scale_embedding=True,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    model = MarianMTModel(config).to(device).train()
    return model, lambda s, t, wanted: smoothed(model(input_ids=s, decoder_input_ids=t).logits, wanted)


# -- running ----------------------------------------------------------------------------


def make_step(make_model, work: Work, n_inputs: int, device: torch.device, how: str, args):
    """A candidate's step: the same batches and settings for each of them."""
    torch.manual_seed(0)
    if args.keep_memory:
        keep_freed_memory()
    shape = work.batch, work.length
    batches = [tuple(torch.randint(2, work.vocab, shape, device=device) for _ in range(n_inputs)) for _ in range(4)]
    model, loss = make_model(work, device)
    return step_of(loss, model, batches, device, how, args.precision == "bfloat16")


def run(title: str, work: Work, candidates: dict, n_inputs: int, device, args) -> None:
    on_gpu = device.type == "cuda"
    # Ours stands first and last: a GPU slows as it warms, and the slower of the two is what counts.
    again = {"regard, again": candidates["regard"]} if on_gpu and not args.only else {}
    makes = {}
    for name, make_model in {**candidates, **again}.items():
        unwanted = (args.only and args.only not in name) or any(word in name for word in args.without)
        if unwanted or ("graphs" in name and not (args.compile and on_gpu)):
            continue
        how = "eager" if not args.compile else "ours" if "regard" in name or "graphs" in name else "plain"
        makes[name] = partial(make_step, make_model, work, n_inputs, device, how, args)
    rows = []
    if not on_gpu:
        rows = measure_in_turns(makes, warmup=args.warmup, repeats=args.repeats)
        makes = {}
    for name, make in makes.items():
        try:
            rows.append(measure(name, make, warmup=args.warmup, repeats=args.repeats, device=device))
        except ImportError as error:
            print(f"{name}: left out ({error})")
    report(title, rows, work=work.batch * work.length, unit="target tokens/s", ours="regard", beside="graphs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT, for its model.py")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16" if cuda else "float32")
    parser.add_argument("--keep-memory", action="store_true", help="on a CPU: keep_freed_memory() for everybody")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=cuda)
    parser.add_argument("--warmup", type=int, default=10 if cuda else 3)
    parser.add_argument("--repeats", type=int, default=30 if cuda else 10)
    parser.add_argument("--work", choices=["gpt", "translator", "both"], default="both")
    parser.add_argument("--only", help="only candidates whose name has this in it")
    parser.add_argument("--without", nargs="+", default=[], help="all but those whose name has one of these in it")
    args = parser.parse_args()
    device = torch.device(args.device)
    if args.nanogpt:
        sys.path.insert(0, str(args.nanogpt))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    how = f"{'compiled' if args.compile else 'eager'}, {args.precision}{', memory kept' if args.keep_memory else ''}"
    print(f"{where}, torch {torch.__version__}, {how}\n")
    gpts = {"regard": ours_gpt, "nanoGPT": nano_gpt, "nanoGPT, graphs": nano_gpt, "transformers GPT-2": hf_gpt}
    translators = {
        "regard": ours_translator,
        "nn.Transformer": torch_translator,
        "nn.Transformer, graphs": torch_translator,
        "transformers Marian": marian_translator,
    }
    on_gpu = device.type == "cuda"
    if args.work != "translator":
        work = GPU_GPT if on_gpu else CPU_GPT
        run(f"GPT training, {work.batch} x {work.length}", work, gpts, 2, device, args)
    if args.work != "gpt":
        work = GPU_TRANSLATOR if on_gpu else CPU_TRANSLATOR
        size = f"{work.batch} x {work.length}"
        run(f"translator training, {size} + {size}", work, translators, 3, device, args)


if __name__ == "__main__":
    main()

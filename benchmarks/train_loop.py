"""The whole training loop on real text: regard against itself on one synthetic batch, and against Hugging Face Marian.

    python benchmarks/train_loop.py --data data/europarl            # a prepared data directory (regard prepare)
    python benchmarks/train_loop.py --data data/small --small       # 2 CPU cores: a small model

Three rates, in real target tokens a second (padding is not counted), at the same token budget, in one process:

- regard, synthetic: forward, loss, backward and AdamW on a batch that is full and never changes
- regard, the loop: `regard.train` as it is: batches made on the way, clipping, schedule, books
- transformers Marian: the same texts in batches by length, padded by its DataCollatorForSeq2Seq in a DataLoader with
  worker processes; eager, and compiled for changing shapes
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from measure import median_time
from regard.data.batches import padding
from regard.data.bucketed import Bucketed
from regard.data.store import DataDir
from regard.recipe import Data, Files, Recipe, Train
from regard.train.distributed import World
from regard.train.loader import Loader
from regard.train.loop import Trainer
from regard.train.run import Run
from regard.train.watch import Watch
from train_step import SMOOTHING, Work, marian_translator, ours_translator, step_of

BASE = Work(batch=800, length=32, vocab=0, layers=6, width=512, heads=8, dropout=0.1)
SMALL = Work(batch=128, length=32, vocab=0, layers=2, width=64, heads=4, dropout=0.1)


def synthetic(work: Work, device, compile: bool, repeats: int) -> float:
    def ids():
        return torch.randint(4, work.vocab, (work.batch, work.length), device=device)

    batches = [(ids(), ids(), ids()) for _ in range(4)]
    torch.manual_seed(0)
    model, loss = ours_translator(work, device)
    step = step_of(loss, model, batches, device, "ours" if compile else "eager")
    seconds, _ = median_time(step, warmup=min(10, repeats), repeats=repeats, device=device)
    return work.batch * work.length / seconds


def our_loop(data: DataDir, work: Work, train: Train, device, steps: int) -> tuple[float, float, float]:
    """Rate, share of the time that the loop waited for batches, share of padding."""
    sizes = {"d_model": work.width, "n_layers": work.layers, "n_heads": work.heads, "d_ff": 4 * work.width}
    tower = {**sizes, "dropout": work.dropout, "embed_dropout": work.dropout}
    recipe = Recipe(
        data=Data(task="translate", train=Files(files=("none",))),
        model={"preset": "vaswani_base", "encoder": tower, "decoder": tower},
        train=train,
    )
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(recipe, data, Run(scratch), World(0, 1, device), Watch(quiet=True))
        loader = Loader(trainer.batches, 1, parts=1, rank=0, world=1, device=device)
        warmup = max(10, steps // 10)
        for _ in range(warmup):
            trainer.step(next(loader))
        _wait(device)
        begin, waited, tokens = time.perf_counter(), loader.waited, 0
        for _ in range(steps):
            update = next(loader)
            trainer.step(update)
            tokens += update.size.tokens
            if update.step % train.log_every == 0:
                trainer.sums.tolist()  # as the loop's books do
        _wait(device)
        took = time.perf_counter() - begin
        loader.stop()
        return tokens / took, (loader.waited - waited) / took, padding(trainer.batches, range(warmup, warmup + steps))


def marian_loop(data: DataDir, work: Work, train: Train, device, steps: int, compile: bool) -> tuple[float, float]:
    """Rate, and share of the time that it waited for batches."""
    from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(data.path / "tokenizer.json"), pad_token="<pad>")
    columns, end = data.split("train"), data.tokenizer.end
    order = Bucketed(data, "train", train.replace(packed=None), shuffled=True)

    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return len(columns["source"])

        def __getitem__(self, i):
            ids = {
                "input_ids": [*map(int, columns["source"][i]), end],
                "labels": [*map(int, columns["target"][i]), end],
            }
            return {**ids, "attention_mask": [1] * len(ids["input_ids"])}

    torch.manual_seed(0)
    model, _ = marian_translator(work, device)
    collate = DataCollatorForSeq2Seq(tokenizer, model=model)
    warmup = max(10, steps // 10)
    loader = torch.utils.data.DataLoader(
        Pairs(),
        batch_sampler=[order.rows(step).tolist() for step in range(warmup + steps)],
        collate_fn=collate,
        num_workers=8 if device.type == "cuda" else 1,
        pin_memory=device.type == "cuda",
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss_fn(batch):
        out = model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            decoder_input_ids=batch["decoder_input_ids"],
        )
        return F.cross_entropy(out.logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=SMOOTHING)

    loss_fn = torch.compile(loss_fn, dynamic=True) if compile else loss_fn
    tokens, waited, begin, asked = 0, 0.0, 0.0, 0.0
    for i, cpu_batch in enumerate(loader):
        waited += time.perf_counter() - asked
        if i == warmup:
            _wait(device)
            tokens, waited, begin = 0, 0.0, time.perf_counter()
        tokens += int((cpu_batch["labels"] >= 0).sum())
        batch = {name: t.to(device, non_blocking=True) for name, t in cpu_batch.items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_fn(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        asked = time.perf_counter()
    _wait(device)
    took = time.perf_counter() - begin
    return tokens / took, waited / took


def _wait(device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = torch.cuda.is_available()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=cuda)
    parser.add_argument("--small", action="store_true", default=not cuda)
    parser.add_argument("--steps", type=int, default=200 if cuda else 20)
    parser.add_argument("--row-tokens", type=int, default=5120 if cuda else 1024)
    parser.add_argument("--padded", action="store_true", help="measure the layout of a text a row as well")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--without", help="no peer whose name has this in it: compiled")
    args = parser.parse_args()
    device, data = torch.device(args.device), DataDir(args.data)
    work = SMALL if args.small else BASE
    work.vocab = len(data.tokenizer)
    budget = work.batch * work.length
    train = Train(
        steps=10**6,
        batch_tokens=budget,
        packed=True,
        row_tokens=args.row_tokens,
        smoothing=SMOOTHING,
        compile=args.compile,
    )
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"{where}, torch {torch.__version__}; {budget:,} tokens a batch, vocabulary {work.vocab:,}\n", flush=True)

    rates: dict[str, float] = {}

    def row(name: str, rate: float, more: str = "") -> None:
        rates[name] = rate
        print(f"{name:36} {rate:12,.0f} target tokens/s  {more}", flush=True)
        gc.collect()
        torch._dynamo.reset()
        if device.type == "cuda":
            torch.cuda.empty_cache()

    row("regard, synthetic", synthetic(work, device, args.compile, args.steps // 4))
    layouts = {"regard, the loop": train}
    if args.padded:
        layouts["regard, the loop, padded"] = train.replace(packed=None, row_tokens=None)
    for name, settings in layouts.items():
        rate, waited, pad = our_loop(data, work, settings, device, args.steps)
        row(name, rate, f"padding {pad:.1%}, waited for batches {waited:.2%} of the time")
    if args.peers:
        for compile in (False, True) if args.compile else (False,):
            name = f"transformers Marian, {'compiled' if compile else 'eager'}"
            if args.without and args.without in name:
                continue
            rate, waited = marian_loop(data, work, train, device, args.steps, compile)
            row(name, rate, f"waited for batches {waited:.2%} of the time")
    row("regard, synthetic, again", synthetic(work, device, args.compile, args.steps // 4))
    ours = rates["regard, the loop"]
    print(f"\nratio: the loop / synthetic = {ours / max(v for k, v in rates.items() if 'synthetic' in k):.3f}")
    peers = [rate for name, rate in rates.items() if "Marian" in name]
    if peers:
        print(f"ratio: the loop / transformers Marian = {ours / max(peers):.3f}")


if __name__ == "__main__":
    main()

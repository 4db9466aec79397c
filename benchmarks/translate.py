"""Translating with regard and its peers on the same weights and sentences: on a CPU in turns, each in a process of its
own, on a GPU in turns in one process.

    python benchmarks/translate.py                              # Transformer base, random weights, greedy and beam 4
    python benchmarks/translate.py --small                      # d 256, 3 + 3 layers
    python benchmarks/translate.py --sentences 1                # one alone: how long it is waited for
    python benchmarks/translate.py --model RUN --source FILE    # a trained model and real text

With random weights every sentence has exactly as many tokens as every other, in and out, so that all do the same work.
"same" is the share of sentences whose tokens are those of the first row, regard in its widest precision. Real text is
scored instead: BLEU of each output against that row's, and against --reference.

Peers: transformers' generate and CTranslate2, as far as they are installed, opened from what `regard export` writes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import tokenizers
import torch
from rich.console import Console
from rich.table import Table
from tokenizers.models import WordLevel

import regard
from measure import in_turns, kept, measure_in_turns
from regard import presets
from regard.data.tokenizer import SPECIAL, Tokenizer
from regard.decode.search import Decoding, search
from regard.interop.directory import export
from regard.memory import keep_freed_memory
from regard.model import Model
from regard.nn import Transformer
from regard.weights import write_weights

VOCABULARY = 16_000
BATCH_TOKENS = {"cpu": 2_048, "cuda": 8_192}  # of real text, read at once by the peers; regard chooses its own


@dataclass
class Work:
    """What is translated: sources as ids, their end included, to so many tokens; or lines of text."""

    beam: int
    threads: int
    device: str
    sources: list[list[int]]
    length: int
    lines: list[str]


# -- candidates: a model's directory and the work in, a call that translates it out -----------


def ours(folder: Path, precision: str, work: Work) -> Callable[[], list[Any]]:
    torch.set_num_threads(work.threads)
    model = regard.load(folder / "regard", device=work.device, precision=precision)  # type: ignore[arg-type]
    if work.device == "cpu":
        keep_freed_memory()  # as `regard translate` does

    def ids() -> list[list[int]]:
        source = torch.tensor(work.sources, device=model.device)
        lengths = torch.full((len(source),), source.shape[1], device=model.device)
        memory = model.recorder.encode(model.net, source, lengths)
        found = search(
            model.net,
            torch.full((len(source), 1), model.tokenizer.start, device=model.device),
            memory=memory,
            end=model.tokenizer.end,
            limits=work.length,
            how=Decoding(beam=work.beam, min_length=work.length + 1),  # nothing ends
            recorder=model.recorder,
        )
        return [best.ids for best, *_ in found]

    def texts() -> list[str]:
        found = model.translate(work.lines, beam=work.beam, length_penalty=1.0, penalty="plain")
        return [translation.text for translation in found]

    return texts if work.lines else ids


def transformers(folder: Path, precision: str, work: Work) -> Callable[[], list[Any]]:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(work.threads)
    dtype = getattr(torch, precision)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "hf", dtype=dtype).to(work.device).eval()

    def ids() -> list[list[int]]:
        source = torch.tensor(work.sources, device=work.device)
        out = model.generate(
            source,
            attention_mask=torch.ones_like(source),
            num_beams=work.beam,
            min_new_tokens=work.length,
            max_new_tokens=work.length,
            suppress_tokens=None,
        )
        return out[:, 1:].tolist()

    def texts() -> list[str]:
        reads = AutoTokenizer.from_pretrained(folder / "hf")
        apart = (folder / "hf" / "target").exists()
        writes = AutoTokenizer.from_pretrained(folder / "hf", subfolder="target") if apart else reads
        answers = [""] * len(work.lines)
        for batch in batches(reads(work.lines)["input_ids"], BATCH_TOKENS[work.device]):
            given = reads([work.lines[i] for i in batch], padding=True, return_tensors="pt").to(work.device)
            most = 2 * given["input_ids"].shape[1] + 16
            out = model.generate(**given, num_beams=work.beam, max_new_tokens=most)
            for i, text in zip(batch, writes.batch_decode(out, skip_special_tokens=True), strict=True):
                answers[i] = text
        return answers

    return texts if work.lines else ids


def ctranslate2(folder: Path, precision: str, work: Work) -> Callable[[], list[Any]]:
    from ctranslate2 import Translator

    directory = folder / "ctranslate2"
    model = Translator(
        str(directory), device=work.device, compute_type=precision, inter_threads=1, intra_threads=work.threads
    )
    writes = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    own = directory / "source.tokenizer.json"
    reads = tokenizers.Tokenizer.from_file(str(own)) if own.exists() else writes
    reads.encode_special_tokens = True

    def ids() -> list[list[int]]:
        sources = [[reads.id_to_token(id) for id in ids[:-1]] for ids in work.sources]  # it adds the end itself
        length = {"min_decoding_length": work.length, "max_decoding_length": work.length}
        found = model.translate_batch(sources, beam_size=work.beam, **length)
        return [[writes.token_to_id(token) for token in result.hypotheses[0]] for result in found]

    def texts() -> list[str]:
        sources = [encoded.tokens for encoded in reads.encode_batch(work.lines)]
        never = [[name] for role, (name, *_) in SPECIAL.items() if role != "end"]
        found = model.translate_batch(
            sources,
            beam_size=work.beam,
            suppress_sequences=never,
            max_batch_size=BATCH_TOKENS[work.device],
            batch_type="tokens",
        )
        return [writes.decode([writes.token_to_id(token) for token in r.hypotheses[0]]) for r in found]

    return texts if work.lines else ids


def batches(rows: list[list[int]], budget: int) -> list[list[int]]:
    """Which rows go together: those of like length, as many as the budget of tokens takes."""
    order, out = iter(sorted(range(len(rows)), key=lambda i: -len(rows[i]))), []
    for first in order:
        out.append([first, *islice(order, max(0, budget // len(rows[first]) - 1))])
    return out


CANDIDATES = {
    "cpu": {
        "regard float32": (ours, "float32"),
        "regard bfloat16": (ours, "bfloat16"),
        "regard int8": (ours, "int8"),
        "transformers float32": (transformers, "float32"),
        "transformers bfloat16": (transformers, "bfloat16"),
        "ctranslate2 float32": (ctranslate2, "float32"),
        "ctranslate2 int8": (ctranslate2, "int8"),
    },
    "cuda": {
        "regard float32": (ours, "float32"),
        "regard bfloat16": (ours, "bfloat16"),
        "regard float16": (ours, "float16"),
        "transformers float32": (transformers, "float32"),
        "transformers bfloat16": (transformers, "bfloat16"),
        "transformers float16": (transformers, "float16"),
        "ctranslate2 float16": (ctranslate2, "float16"),
    },
}
RATIOS = [  # ours over a peer's
    ("regard float32", "ctranslate2 float32"),
    ("regard float32", "transformers float32"),
    ("regard bfloat16", "transformers bfloat16"),
    ("regard bfloat16", "ctranslate2 int8"),
    ("regard int8", "ctranslate2 int8"),
    ("regard float16", "transformers float16"),
    ("regard float16", "ctranslate2 float16"),
]


# -- the model, for everybody -----------------------------------------------------------------


def random_model(small: bool) -> Model:
    """A post-norm Transformer with random weights, and a vocabulary of numbered words."""
    config = presets.vaswani_base(vocab_size=VOCABULARY)
    if small:
        sizes = {"d_model": 256, "n_layers": 3, "n_heads": 4, "d_ff": 1024}
        config = config.replace(**{side: getattr(config, side).replace(**sizes) for side in ("encoder", "decoder")})
    torch.manual_seed(0)
    names = [*(name for name, *_ in SPECIAL.values()), *(f"word{i}" for i in range(VOCABULARY - len(SPECIAL)))]
    vocabulary = {name: i for i, name in enumerate(names)}
    tokens = Tokenizer(tokenizers.Tokenizer(WordLevel(vocabulary, unk_token=names[-1])))
    return Model(Transformer(config), "translate", tokens)


def lay_out(model: Model, folder: Path) -> None:
    """The same model for everybody: regard's own directory, and what it exports for those that are there."""
    if model.path is None:
        (folder / "regard").mkdir()
        facts = {"task": model.task, "model": model.config.to_dict(), "recipe": {"data": {}}}
        (folder / "regard" / "config.json").write_text(json.dumps(facts))
        write_weights(folder / "regard" / "model.safetensors", model.net.state_dict())
        model.tokenizer.save(folder / "regard" / "tokenizer.json")
    else:
        (folder / "regard").symlink_to(model.path.resolve(), target_is_directory=True)
    for package, to in (("transformers", "hf"), ("ctranslate2", "ctranslate2")):
        if not importlib.util.find_spec(package):
            print(f"{package}: left out (not installed)")
            continue
        try:
            export(model, to, folder / to)
        except regard.RegardError as error:
            print(f"{package}: left out ({error})")


# -- measuring --------------------------------------------------------------------------------


def run(title: str, folder: Path, work: Work, args: argparse.Namespace) -> None:
    device = torch.device(work.device).type
    makes = {
        name: partial(kept, partial(make, folder, precision, work), folder / f"{name}.json")
        for name, (make, precision) in CANDIDATES[device].items()
        if args.only in name and (make is ours or (folder / ("hf" if make is transformers else "ctranslate2")).exists())
    }
    if device == "cuda":
        rows = in_turns(makes, args.warmup, args.repeats)
    else:
        rows = measure_in_turns(makes, warmup=args.warmup, repeats=args.repeats)
    outputs = {row.name: json.loads((folder / f"{row.name}.json").read_text()) for row in rows}
    first = outputs[rows[0].name]
    columns = {name: agreement(output, first, args.reference) for name, output in outputs.items()}
    table = Table(title=title, title_justify="left")
    for column in ("", "tokens/s", "sentences/s", "seconds", "spread", *columns[rows[0].name]):
        table.add_column(column, justify="left" if not column else "right")
    for row in rows:
        tokens = f"{len(work.sources) * work.length / row.seconds:,.0f}" if work.sources else "-"
        sentences = f"{len(first) / row.seconds:,.1f}"
        more = columns[row.name].values()
        table.add_row(row.name, tokens, sentences, f"{row.seconds:,.3f}", f"{row.spread:.2f}", *more)
    Console(width=110).print(table)
    seconds = {row.name: row.seconds for row in rows}
    for mine, peer in RATIOS:
        if mine in seconds and peer in seconds:
            print(f"ratio: {mine} / {peer} = {seconds[peer] / seconds[mine]:.3f}")
    print(flush=True)


def agreement(output: list[Any], first: list[Any], reference: Path | None) -> dict[str, str]:
    """How much of an answer is the first row's; for texts also what BLEU thinks, if it is installed."""
    columns = {"same": f"{sum(a == b for a, b in zip(output, first, strict=True)) / len(first):.1%}"}
    if first and isinstance(first[0], str):
        bleu = None
        if importlib.util.find_spec("sacrebleu"):
            from sacrebleu import corpus_bleu as bleu
        wanted = [] if reference is None else reference.read_text(encoding="utf-8").splitlines()[: len(first)]
        columns["BLEU with regard's"] = f"{bleu(output, [first]).score:.1f}" if bleu else "-"
        columns["BLEU"] = f"{bleu(output, [wanted]).score:.2f}" if bleu and wanted else "-"
    return columns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if cuda else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--small", action="store_true", help="d 256, 3 + 3 layers")
    parser.add_argument("--model", help="a run directory of a translator, instead of random weights")
    parser.add_argument("--source", type=Path, help="with --model: the text to translate, a sentence a line")
    parser.add_argument("--reference", type=Path, help="with --model: its translation, to score by")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4], help="1 is greedy")
    parser.add_argument("--sentences", type=int, help="of random words  [default: 64, on a GPU 128]")
    parser.add_argument("--threads", type=int, default=2, help="on a CPU")
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="only candidates whose name has this in it")
    args = parser.parse_args()
    if (args.model is None) != (args.source is None):
        parser.error("--model and --source go together")
    on_gpu = args.device == "cuda"
    n, length = (128, 30) if on_gpu else (64, 24)
    n = args.sentences or n
    where = torch.cuda.get_device_name() if on_gpu else f"{args.threads} CPU threads"
    print(f"{where}, torch {torch.__version__}, {args.model or ('small' if args.small else 'base')}\n")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = (
            regard.load(args.model, device="cpu", precision="float32", packed=False)
            if args.model
            else random_model(args.small)
        )
        lay_out(model, folder)
        lines = args.source.read_text(encoding="utf-8").splitlines() if args.source else []
        sources: list[list[int]] = []
        if not lines:
            words = torch.randint(len(SPECIAL), VOCABULARY, (n, length - 1)).tolist()
            sources = [[*row, model.source_tokenizer.end] for row in words]
        for beam in args.beams:
            how = "greedy" if beam == 1 else f"beam {beam}"
            title = f"{len(lines)} lines, {how}" if lines else f"{n} x {length} -> {length} tokens, {how}"
            run(title, folder, Work(beam, args.threads, args.device, sources, length, lines), args)


if __name__ == "__main__":
    main()

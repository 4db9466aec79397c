"""Going on with text, regard and transformers on the same weights and prompts: on a CPU in turns, each in a process of
its own, on a GPU in turns in one process.

    python benchmarks/generate.py                     # GPT-2 124M, random weights: 64 tokens in, 64 out, greedy
    python benchmarks/generate.py --batches 1 --only float32

Nothing ends early, so that all do the same work. "same" is the share of the tokens written that are those of the first
row, regard in its widest precision: random weights have many near ties, which roundings decide. transformers runs its
plain generate and, on a GPU, also with a static cache and a compiled step, after a warm-up that compiles it. On a CPU
the floor of a step is shown first: the time it takes to read every weight once, which a token of one row has to.
There llama.cpp runs too, a row at a time, where it is installed (`pip install llama-cpp-python`, which compiles it).
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from measure import in_turns, kept, measure_in_turns, median_time
from regard import presets
from regard.decode.recorded import Recorder
from regard.decode.search import Decoding, search
from regard.interop import to_hf
from regard.memory import keep_freed_memory
from regard.nn import Transformer, skeleton
from regard.nn.packed import pack
from regard.weights import read_weights, write_weights


@dataclass
class Work:
    """So many prompts of so many tokens, and as many to write."""

    batch: int
    length: int
    new: int
    threads: int
    device: str

    def prompts(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.batch)
        size = presets.gpt2().decoder.input.vocab_size  # type: ignore[union-attr]
        return torch.randint(0, size, (self.batch, self.length), generator=generator)


# -- candidates: a folder of weights and the work in, a call that writes out ------------------


def ours(folder: Path, precision: str, work: Work) -> Callable[[], list[list[int]]]:
    torch.set_num_threads(work.threads)
    net = skeleton(presets.gpt2())
    net.load_state_dict(read_weights(folder / "ours.safetensors"), assign=True)
    dtype = torch.float32 if precision == "int8" else getattr(torch, precision)
    net = net.to(work.device, dtype).eval().requires_grad_(False)
    if work.device == "cpu":
        pack(net, int8=precision == "int8")
        keep_freed_memory()  # as `regard generate` does
    prompts, recorder = work.prompts().to(work.device), Recorder()
    end = presets.gpt2().decoder.input.vocab_size - 1  # type: ignore[union-attr]

    def call() -> list[list[int]]:
        how = Decoding(beam=1, min_length=work.new + 1)  # nothing ends
        found = search(net, prompts, end=end, limits=work.new, how=how, recorder=recorder)
        return [best.ids for best, *_ in found]

    return call


def transformers(folder: Path, precision: str, work: Work, *, compiled: bool = False) -> Callable[[], list[list[int]]]:
    from transformers import GPT2Config, GPT2LMHeadModel, logging

    logging.set_verbosity_error()
    torch.set_num_threads(work.threads)
    config = GPT2Config(**json.loads((folder / "hf.json").read_text()))
    model = GPT2LMHeadModel(config)
    model.load_state_dict(read_weights(folder / "hf.safetensors"), strict=False)
    model = model.to(work.device, getattr(torch, precision)).eval()
    prompts = work.prompts().to(work.device)
    options = {"cache_implementation": "static"} if compiled else {}

    def call() -> list[list[int]]:
        out = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            min_new_tokens=work.new,
            max_new_tokens=work.new,
            pad_token_id=config.eos_token_id,
            **options,
        )
        return out[:, work.length :].tolist()

    return call


THEIRS = {  # llama.cpp's names of transformers' tensors
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip


def write_gguf(folder: Path, kind: str) -> Path:
    """The weights as llama.cpp reads them, matrices in float32 or in eight bits."""
    import gguf

    config = json.loads((folder / "hf.json").read_text())
    path, matrix = folder / f"{kind}.gguf", getattr(gguf.GGMLQuantizationType, kind)
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    state = {name.removeprefix("transformer."): x for name, x in read_weights(folder / "hf.safetensors").items()}
    named = {"token_embd.weight": state["wte.weight"], "position_embd.weight": state["wpe.weight"]}
    named |= {f"output_norm.{part}": state[f"ln_f.{part}"] for part in ("weight", "bias")}
    for layer in range(config["n_layer"]):
        for theirs, name in THEIRS.items():
            for part in ("weight", "bias"):
                given = state[f"h.{layer}.{theirs}.{part}"]
                named[f"blk.{layer}.{name}.{part}"] = given.T if given.dim() == 2 else given
    for name, x in named.items():
        wanted = matrix if x.dim() == 2 and name != "position_embd.weight" else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(x.contiguous().numpy(), wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama_cpp(folder: Path, kind: str, work: Work) -> Callable[[], list[list[int]]]:
    import llama_cpp as library
    import numpy as np

    @library.llama_log_callback
    def say_nothing(level, text, data):
        pass

    library.llama_log_set(say_nothing, ctypes.c_void_p(0))
    model = library.llama_model_load_from_file(
        str(write_gguf(folder, kind)).encode(), library.llama_model_default_params()
    )
    settings = library.llama_context_default_params()
    settings.n_ctx, settings.n_batch = work.length + work.new, work.length
    settings.n_threads = settings.n_threads_batch = work.threads
    context = library.llama_init_from_model(model, settings)
    size = json.loads((folder / "hf.json").read_text())["vocab_size"]

    def read(ids: list[int]) -> int:
        tokens = (library.llama_token * len(ids))(*ids)  # which the batch only points to
        assert library.llama_decode(context, library.llama_batch_get_one(tokens, len(ids))) == 0
        return int(np.ctypeslib.as_array(library.llama_get_logits_ith(context, -1), (size,))[: size - 1].argmax())

    def call() -> list[list[int]]:
        written = []
        for prompt in work.prompts().tolist():
            library.llama_memory_clear(library.llama_get_memory(context), True)
            ids = [read(prompt)]
            while len(ids) < work.new:
                ids.append(read(ids[-1:]))
            written.append(ids)
        return written

    call.kept_alive = say_nothing  # type: ignore[attr-defined]
    return call


HAS_LLAMA_CPP = importlib.util.find_spec("llama_cpp") is not None
CANDIDATES = {
    "cpu": {
        "regard float32": (ours, "float32"),
        "regard bfloat16": (ours, "bfloat16"),
        "regard int8": (ours, "int8"),
        "transformers float32": (transformers, "float32"),
        "transformers bfloat16": (transformers, "bfloat16"),
        "llama.cpp float32": (llama_cpp, "F32"),
        "llama.cpp int8": (llama_cpp, "Q8_0"),
    },
    "cuda": {
        "regard float32": (ours, "float32"),
        "regard bfloat16": (ours, "bfloat16"),
        "transformers bfloat16": (transformers, "bfloat16"),
        "transformers bfloat16, static and compiled": (partial(transformers, compiled=True), "bfloat16"),
        "transformers float32": (transformers, "float32"),
    },
}


# -- measuring --------------------------------------------------------------------------------


def show_floor(threads: int) -> None:
    """How long a CPU takes to read all weights, by the simplest thing that reads: their sum."""
    torch.set_num_threads(threads)
    n = skeleton(presets.gpt2()).n_parameters()
    for precision in (torch.float32, torch.bfloat16, torch.int8):
        size = n * precision.itemsize
        weights = torch.ones(size // 4)  # summed as float32 whatever they stand for: it is the bytes that count
        seconds, _ = median_time(weights.sum, warmup=1, repeats=9, device=weights.device)
        rate = size / seconds / 1e9
        print(f"floor: {size / 1e6:,.0f} MB of {precision} weights at {rate:.1f} GB/s, {1000 * seconds:.1f} ms a token")
    print()


def run(folder: Path, work: Work, args: argparse.Namespace) -> None:
    makes = {
        name: partial(kept, partial(make, folder, precision, work), folder / f"{name}.json")
        for name, (make, precision) in CANDIDATES[work.device].items()
        if args.only in name and (make is not llama_cpp or (work.batch == 1 and HAS_LLAMA_CPP))
    }
    take = in_turns if work.device == "cuda" else measure_in_turns
    rows = take(makes, warmup=args.warmup, repeats=args.repeats)
    written = {row.name: torch.tensor(json.loads((folder / f"{row.name}.json").read_text())) for row in rows}
    table = Table(title=f"{work.batch} x {work.length} -> {work.new} tokens, greedy", title_justify="left")
    for column in ("", "tokens/s", "ms a token", "seconds", "spread", "same"):
        table.add_column(column, justify="left" if not column else "right")
    for row in rows:
        same = (written[row.name] == written[rows[0].name]).double().mean().item()
        rate, step = work.batch * work.new / row.seconds, 1000 * row.seconds / work.new
        table.add_row(row.name, f"{rate:,.0f}", f"{step:.2f}", f"{row.seconds:.3f}", f"{row.spread:.2f}", f"{same:.1%}")
    Console(width=110).print(table)
    seconds = {row.name: row.seconds for row in rows}
    for mine in (row.name for row in rows if row.name.startswith("regard")):
        for peer in (row.name for row in rows if not row.name.startswith("regard")):
            if mine.split()[1] in peer:
                print(f"ratio: {mine} / {peer} = {seconds[peer] / seconds[mine]:.3f}")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if cuda else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batches", type=int, nargs="+", help="prompts at once  [default: 1 16, on a GPU 1 64]")
    parser.add_argument("--length", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens to write")
    parser.add_argument("--threads", type=int, default=2, help="on a CPU")
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="only candidates whose name has this in it")
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    where = torch.cuda.get_device_name() if on_gpu else f"{args.threads} CPU threads"
    print(f"{where}, torch {torch.__version__}, GPT-2 124M\n")
    if not on_gpu:
        show_floor(args.threads)
        print("" if HAS_LLAMA_CPP else "llama.cpp: left out (not installed)\n")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        torch.manual_seed(0)
        net = Transformer(presets.gpt2())
        write_weights(folder / "ours.safetensors", net.state_dict())
        config, state = to_hf(net)
        (folder / "hf.json").write_text(json.dumps(config))
        write_weights(folder / "hf.safetensors", {name: weight.contiguous() for name, weight in state.items()})
        del net, state
        for batch in args.batches or ([1, 64] if on_gpu else [1, 16]):
            run(folder, Work(batch, args.length, args.new, args.threads, args.device), args)


if __name__ == "__main__":
    main()

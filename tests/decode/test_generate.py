"""Prompts in, what follows them out: the laws of it, in Python and on the command line."""

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

import ready
import regard
import toy
from regard import recipe
from regard.config import ConfigError, InputError
from regard.data.tokenizer import Tokenizer
from regard.decode import recorded
from regard.decode.chat import Chat
from regard.decode.generate import stream
from regard.decode.search import Decoding, search
from regard.decode.text import Reader
from regard.train.loop import train
from regard.train.watch import Watch

TEXTS = ["the red dog", "é ü 你好 😀 x", "  two\n\nlines ", "a", "naïve — “quotes”"]
PROMPTS = ["the red", "a", "two old birds sleep under the large", "the red dog runs", "", "é"]
HOWS = {
    "greedy": {"temperature": 0},
    "beam": {"beam": 3, "n": 2},
    "drawn": {"temperature": 1.1, "top_p": 0.95, "n": 2, "seed": 3},
    "drawn from few": {"temperature": 0.9, "top_k": 11, "min_p": 0.02, "repetition_penalty": 1.3},
}


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A run directory of a language model that has learned a little, and one of a translator."""
    folder = tmp_path_factory.mktemp("generate")
    for task in ("generate", "translate"):
        made, data = toy.prepared(folder / task, task, n=307)
        train(made, data.path, folder / f"run-{task}", device="cpu", watch=Watch(quiet=True))
    return folder


@pytest.fixture(scope="module")
def model(work):
    return regard.load(work / "run-generate", device="cpu")


def untrained(kind="bytes", **changes):
    """A model whose every token is nearly as likely as any other."""
    tokens = Tokenizer.train(toy.sentences(50, seed=5), recipe.Tokenizer(kind=kind, **changes))
    torch.manual_seed(3)
    table = {"preset": "tiny_decoder", "decoder": {"max_len": 61}}
    return regard.Model(regard.Transformer(recipe.model_config(table, vocab_size=len(tokens))), "generate", tokens)


def byte_level():
    """A tokenizer as GPT-2 has: letters that stand for bytes, and a token that begins in the middle of a character."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    vocabulary |= {"½ł": len(letters), "Ġx": len(letters) + 1}  # two bytes of 你; a space and x
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, [("½", "ł"), ("Ġ", "x")]))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return Tokenizer(inner)


def tokenizer(kind):
    if kind == "byte-level":
        return byte_level()
    size = {"vocab_size": 300} if kind == "bpe" else {}
    return Tokenizer.train(toy.sentences(300, seed=5), recipe.Tokenizer(kind=kind, **size))


# ---------------------------------------------------------------------------------------
# Ids to text


@pytest.mark.parametrize("kind", ["bpe", "characters", "bytes", "byte-level"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_read_token_by_token_is_the_text(kind, text):
    tokens = tokenizer(kind)
    reader, shown = Reader(tokens), ""
    for id in tokens.encode(text):
        piece = reader.add(id)
        assert "\ufffd" not in piece
        shown += piece
        assert text.startswith(shown)
    assert shown + reader.finish() == reader.text == text == tokens.decode(tokens.encode(text))


@pytest.mark.parametrize("kind", ["bpe", "characters", "bytes", "byte-level"])
def test_a_text_goes_on_where_the_prompt_ended(kind):
    """In a tokenizer that puts a space before a text, the first token written has its own."""
    tokens = tokenizer(kind)
    for text in ("the red dog", "the redé", "a你"):
        ids = tokens.encode(text)
        for cut in range(1, len(ids)):
            before = Reader(tokens)
            for id in ids[:cut]:
                before.add(id)
            after = Reader(tokens, begins=False)
            for id in ids[cut:]:
                after.add(id)
            if not before.whole.getstate()[0]:  # between two characters
                after.finish()
                assert before.text + after.text == text


def test_bytes_that_are_no_text_are_shown_as_such():
    tokens = tokenizer("bytes")
    reader = Reader(tokens)
    shown = [reader.add(id) for id in [*tokens.encode("a"), 4 + 0xE4, *tokens.encode("b"), 4 + 0xE4]]
    assert shown == ["a", "", "\ufffdb", ""]
    assert reader.finish() == "\ufffd"


@pytest.mark.parametrize("stop", [["dog"], ["g ru", "runs"], ["s\n", "dog runs f"], ["x"], ["the doors"]])
@pytest.mark.parametrize("kind", ["bpe", "characters", "bytes"])
def test_nothing_of_a_stop_string_is_shown(kind, stop):
    tokens, text = tokenizer(kind), "the dog runs\nover the dog"
    reader, shown = Reader(tokens, stop), ""
    wanted = min((text.index(s) for s in stop if s in text), default=len(text))
    for id in tokens.encode(text):
        shown += reader.add(id)
        assert text[:wanted].startswith(shown)
    shown += reader.finish()
    assert shown == reader.text == text[:wanted]
    assert reader.stopped == any(s in text for s in stop)
    first = tokens.encode(text)[: reader.n_tokens]
    assert tokens.decode(first).startswith(shown)
    assert not tokens.decode(first[:-1]).startswith(shown)


# ---------------------------------------------------------------------------------------
# The laws


@pytest.mark.parametrize("how", HOWS)
def test_a_prompt_goes_on_alike_in_any_batch(model, how):
    """Law 5: alone, in another order, in batches of other sizes, beside itself."""
    options = {"max_new_tokens": 13, **HOWS[how]}
    together = model.generate(PROMPTS, **options)
    alone = [model.generate(prompt, **options)[0] for prompt in PROMPTS]
    backwards = model.generate(PROMPTS[::-1], **options)[::-1]
    small = model.generate(PROMPTS, batch_tokens=40, **options)
    twice = model.generate([prompt for prompt in PROMPTS for _ in range(2)], **options)[1::2]
    for others in (alone, backwards, small, twice):
        for one, other in zip(together, others, strict=True):
            assert [g.text for g in (one, *one.others)] == [g.text for g in (other, *other.others)]
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
            assert (one.finish, one.tokens, one.prompt) == (other.finish, other.tokens, other.prompt)


def test_the_first_samples_do_not_depend_on_how_many_are_asked_for(model):
    three = model.generate(PROMPTS, n=3, max_new_tokens=7, temperature=1.2)
    two = model.generate(PROMPTS, n=2, max_new_tokens=7, temperature=1.2)
    assert [[g.text for g in (one, *one.others)][:2] for one in three] == [
        [one.text, one.others[0].text] for one in two
    ]
    assert any(one.text != one.others[0].text for one in two)
    assert [g.text for g in model.generate(PROMPTS, max_new_tokens=7, temperature=1.2, seed=1)] != [
        g.text for g in model.generate(PROMPTS, max_new_tokens=7, temperature=1.2, seed=2)
    ]


@pytest.mark.parametrize("how", HOWS)
def test_a_logprob_is_the_models_own(model, how):
    ids = {model.tokenizer.token(id): id for id in range(len(model.tokenizer))}
    for said in model.generate(PROMPTS, max_new_tokens=17, **HOWS[how]):
        for one in (said, *said.others):
            before = [*model.prefix, *model.tokenizer.encode(said.prompt)]
            after = [*(ids[token] for token in one.tokens), *([model.tokenizer.end] if one.finish == "end" else [])]
            of_all = model.logits(torch.tensor([[*before, *after]])).log_softmax(-1)[0, len(before) - 1 : -1]
            own = of_all.gather(1, torch.tensor(after, dtype=torch.long)[:, None])[:, 0]
            assert one.logprob == pytest.approx(float(own.sum()), abs=1e-3)
            if "beam" not in how:
                assert one.logprobs == pytest.approx(own[: len(one.tokens)].tolist(), abs=1e-4)
            assert len(one.tokens) <= 17
            whole = model.tokenizer.decode([*before, *after])
            assert "\ufffd" in whole or said.prompt + one.text == whole


def test_greedy_is_the_likeliest_token_each_time(model):
    """And a beam of 1 is the same."""
    tokens = model.tokenizer
    (said,) = model.generate("the red", temperature=0, max_new_tokens=11)
    ids = [*model.prefix, *tokens.encode("the red")]
    wanted = []
    while len(wanted) < 11:
        scores = model.logits(torch.tensor([[*ids, *wanted]]))[0, -1]
        scores[[tokens.pad, tokens.start, tokens.mask]] = -torch.inf
        if int(scores.argmax()) == tokens.end:
            break
        wanted.append(int(scores.argmax()))
    assert said.text == tokens.decode([*ids, *wanted]).removeprefix("the red")
    assert said == model.generate("the red", beam=1, max_new_tokens=11)[0]


@pytest.mark.parametrize("kind", ["bytes", "characters", "bpe"])
@pytest.mark.parametrize(
    "options", [{"temperature": 1.5}, {"temperature": 0}, {"temperature": 1.0, "stop": ["e", "ab"]}]
)
def test_a_stream_is_the_text_in_pieces(kind, options):
    """Of a model that writes anything, bytes that are no text among it."""
    model = untrained(kind, **({"vocab_size": 300} if kind == "bpe" else {}))
    for seed in range(5):
        options = {**options, "max_new_tokens": 29, "seed": seed}
        (whole,) = model.generate("the dog", **options)
        pieces, said = [], None
        streamed = stream(model, "the dog", **options)
        while said is None:
            try:
                pieces.append(next(streamed))
            except StopIteration as end:
                said = end.value
        assert said == whole
        assert all(pieces)
        assert "".join(pieces) == whole.text


@pytest.mark.parametrize("stop", [["o"], ["do", "he"], [" t"], "never this"])
def test_what_meets_a_stop_string_ends_there(model, stop):
    """It is what would have been written without, cut off; with as many tokens as that takes."""
    options = {"max_new_tokens": 31, "temperature": 1.0, "n": 3, "seed": 11}
    reasons = set()
    for free, bound in zip(
        model.generate(PROMPTS, **options), model.generate(PROMPTS, stop=stop, **options), strict=True
    ):
        for one, other in zip((free, *free.others), (bound, *bound.others), strict=True):
            stops = [stop] if isinstance(stop, str) else stop
            at = min((one.text.index(s) for s in stops if s in one.text), default=None)
            assert other.text == one.text[:at]
            assert (other.finish == "stop") == (at is not None)
            assert other.tokens == one.tokens[: len(other.tokens)]
            assert other.logprob == pytest.approx(
                sum(one.logprobs[: len(other.tokens)]) if at is not None else one.logprob, abs=1e-4
            )
            reasons.add(other.finish)
    assert ("stop" in reasons) == (stop != "never this")


def test_a_stop_string_at_the_last_token_that_may_be_written(model):
    longer = model.generate("the red", max_new_tokens=23, temperature=0, n=1)[0].text
    n = next(n for n in range(2, 23) if longer[n - 1] not in longer[: n - 1])  # a token is a character here
    (said,) = model.generate("the red", max_new_tokens=n, temperature=0, stop=longer[n - 1])
    assert (said.text, said.finish) == (longer[: n - 1], "stop")


@pytest.mark.parametrize("how", HOWS)
def test_fixed_shapes_change_nothing(model, how, monkeypatch):
    """As a GPU has them: prompts and rows padded to a few sizes, stop strings looked for now and then."""
    options = {"max_new_tokens": 19, **({} if how == "beam" else {"stop": ["s", "do"]}), **HOWS[how]}
    wanted = model.generate(PROMPTS, **options)
    monkeypatch.setattr(recorded, "fixed_shapes", lambda device: True)
    monkeypatch.setattr(recorded.Recorder, "takes", lambda recorder, ids: False)
    for said, other in zip(model.generate(PROMPTS, **options), wanted, strict=True):
        assert [(g.text, g.finish, g.tokens) for g in (said, *said.others)] == [
            (g.text, g.finish, g.tokens) for g in (other, *other.others)
        ]


def test_transformers_draws_from_the_same(model):
    """The tokens that are left to draw from, and their shares, are those of the other implementation."""
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    ids = torch.tensor([[*model.prefix, *model.tokenizer.encode("the red dog")]])
    logits = model.logits(ids)[:, -1]
    theirs = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(1.4),
            TemperatureLogitsWarper(0.9),
            TopKLogitsWarper(37),
            TopPLogitsWarper(0.97),
            MinPLogitsWarper(0.03),
        ]
    )(ids, logits.clone()).softmax(-1)[0]
    how = {"temperature": 0.9, "top_k": 37, "top_p": 0.97, "min_p": 0.03, "repetition_penalty": 1.4}
    n = 4001
    found = search(
        model.net, ids, end=model.tokenizer.end, limits=1, how=Decoding(n_best=n, **how), requests=[5], never=[]
    )[0]
    drawn = torch.tensor([one.ids[0] if one.ids else model.tokenizer.end for one in found])
    shares = torch.bincount(drawn, minlength=len(theirs)) / n
    assert 3 < int((theirs > 0).sum()) < 37
    assert set(shares.nonzero().flatten().tolist()) <= set(theirs.nonzero().flatten().tolist())
    assert (shares - theirs).abs().max() < 0.03


def test_a_penalty_keeps_from_saying_it_again():
    model = untrained("characters")
    (said,) = model.generate("a", temperature=0, repetition_penalty=1e6, max_new_tokens=37)
    ids = model.tokenizer.encode(said.text)
    assert len(set(said.tokens)) == len(said.tokens) == 37
    assert model.tokenizer.encode("a")[0] not in ids


# ---------------------------------------------------------------------------------------
# Prompts of every kind


def test_a_prompt_that_does_not_fit_keeps_its_last_tokens(model):
    context = model.context
    assert context == 97
    long = "the red dog " * 20
    ids = model.tokenizer.encode(long)
    (said,) = model.generate(long, max_new_tokens=7, temperature=0)
    kept = ids[-(context - 7 - 1) :]
    assert said.dropped == len(ids) - len(kept)
    assert said.prompt == long
    assert said.text == model.generate([[*model.prefix, *kept]], max_new_tokens=7, temperature=0)[0].text
    (much,) = model.generate(long, max_new_tokens=1_000, temperature=0, min_length=1_000)
    assert len(much.tokens) == context // 2
    assert much.finish == "length"


def test_a_full_context_ends_a_text(model):
    prompt = "the red dog " * 7
    room = model.context - 1 - len(model.tokenizer.encode(prompt))
    said, short = model.generate([prompt, "a"], max_new_tokens=1_000, temperature=0, min_length=1_000)
    assert (len(said.tokens), said.finish, said.dropped) == (room, "length", 0)
    assert (len(short.tokens), short.finish) == (model.context - 2, "length")


def test_a_recurrent_model_has_no_limit():
    tokens = tokenizer("bytes")
    net = regard.Transformer(recipe.model_config({"preset": "tiny_lstm"}, vocab_size=len(tokens)))
    model = regard.Model(net, "generate", tokens)
    assert model.context is None
    together = model.generate(["a" * 300, "b"], max_new_tokens=200, min_length=1_000)
    assert [len(said.tokens) for said in together] == [200, 200]
    assert together[1].tokens == model.generate("b", max_new_tokens=200, min_length=1_000)[0].tokens


def test_what_stands_before_a_prompt_is_the_models(model):
    other = regard.Model(model.net, "generate", model.tokenizer)
    other.prefix = []
    (said,) = other.generate("the red", temperature=0, max_new_tokens=5)
    assert said.text == model.generate([model.tokenizer.encode("the red")], temperature=0, max_new_tokens=5)[0].text
    with pytest.raises(InputError, match=r"prompt \(''\) is empty, and this model knows no beginning of a text"):
        other.generate("")


def test_any_of_a_models_ends_ends(model):
    other = regard.Model(model.net, "generate", model.tokenizer)
    other.ends = [model.tokenizer.end, *model.tokenizer.encode("e")]
    options = {"temperature": 1.0, "max_new_tokens": 23, "n": 5}
    (free,), (said,) = model.generate("the red", **options), other.generate("the red", **options)
    for one, cut in zip((free, *free.others), (said, *said.others), strict=True):
        assert cut.text == one.text.split("e")[0]
        assert cut.finish == ("end" if "e" in one.text else one.finish)


def test_json_has_everything(model):
    (said,) = model.generate("the red", n=2, max_new_tokens=5, temperature=1.0, stop=["q"])
    plain = json.loads(json.dumps(said.to_dict()))
    assert plain["text"] == said.text
    assert plain["others"][0]["tokens"] == list(said.others[0].tokens)
    assert plain.keys() == {"text", "prompt", "tokens", "logprob", "logprobs", "finish", "dropped", "others"}


# ---------------------------------------------------------------------------------------
# Mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"n": 3, "temperature": 0},
            "n (3): greedy search finds one text; draw (temperature above 0), or give a beam of 3",
        ),
        ({"n": 0}, "n (0) must be at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens (0) must be at least 1"),
        ({"stop": [""]}, "stop ('') must have at least one character"),
        ({"stop": "x", "beam": 3}, "stop: not with a beam of 3, which ranks whole texts; draw, or take beam 1"),
        ({"beam": 3, "temperature": 0.5}, "a beam does not draw; give one of them"),
        ({"temperature": 1e-40}, "temperature (1e-40) must be 0, which is greedy, or at least 1e-06"),
        ({"min_p": 2}, "min_p (2.0) must be at least 0 and at most 1"),
    ],
)
def test_settings_that_make_no_sense(model, options, message):
    with pytest.raises((InputError, ConfigError)) as error:
        model.generate("a", **options)
    assert message in str(error.value)


def test_other_models_and_streams_of_beams_are_refused(work, model):
    with pytest.raises(InputError, match="was trained to translate, not to generate"):
        regard.load(work / "run-translate", device="cpu").generate("a")
    with pytest.raises(InputError, match=r"beam \(3\): the best text is known in the end"):
        next(stream(model, "a", beam=3))


# ---------------------------------------------------------------------------------------
# Conversations

TEMPLATE = """{{ bos_token }}{% for message in messages %}
{% if message.role not in ("system", "user", "assistant") %}{{ raise_exception("no " + message.role) }}{% endif %}
<|turn|>{{ message.role }}
{{ message.content | trim }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}<|turn|>assistant
{% endif %}"""


def talker(folder, max_len=97, **settings):
    """A model with a template beside it, which says nothing sensible."""
    tokens = byte_level()
    tokens._inner.add_special_tokens(["<|turn|>", "<|over|>"])
    tokens = Tokenizer(tokens._inner)
    torch.manual_seed(3)
    table = {"preset": "tiny_decoder", "decoder": {"max_len": max_len}}
    net = regard.Transformer(recipe.model_config(table, vocab_size=len(tokens)))
    folder.mkdir(parents=True, exist_ok=True)
    config = {"chat_template": TEMPLATE, "bos_token": "<s>", "eos_token": {"content": "<|over|>"}, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return regard.Model(net, "generate", tokens, path=folder)


def turn(tokens, role, text):
    return [
        tokens.special_ids["<|turn|>"],
        *tokens.encode(f"{role}\n{text}"),
        tokens.special_ids["<|over|>"],
        *tokens.encode("\n"),
    ]


def test_a_templates_special_tokens_are_special_and_a_persons_are_not(tmp_path):
    model = talker(tmp_path)
    tokens, begin = model.tokenizer, [model.tokenizer.start]
    ask = [tokens.special_ids["<|turn|>"], *tokens.encode("assistant\n")]
    for text in ("hi", "<|over|>", "x<s>\ufdd0<|turn|>user", "<|tu<|over|>rn|>"):
        ids = Chat(model).encode([{"role": "user", "content": text}])
        assert ids == [*begin, *turn(tokens, "user", text), *ask]
        assert tokens.decode(ids) == f"user\n{text}\nassistant\n"
    assert len(tokens.encode("<|over|>")) == len("<|over|>")


def test_a_template_is_found_where_models_keep_it(tmp_path):
    message = [{"role": "user", "content": "hi"}]
    wanted = Chat(talker(tmp_path / "1")).encode(message)
    several = [{"name": "tools", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    assert Chat(talker(tmp_path / "2", chat_template=several)).encode(message) == wanted
    model = talker(tmp_path / "3", chat_template=None)
    with pytest.raises(InputError, match=r"has no chat template .*: regard generate .*/3 TEXT"):
        Chat(model)
    (tmp_path / "3" / "chat_template.jinja").write_text(TEMPLATE)
    assert Chat(model).encode(message) == wanted
    model = talker(tmp_path / "4", chat_template=None)
    model.chat_template = TEMPLATE
    assert Chat(model).encode(message) == wanted


def test_an_answer_is_what_is_generated_after_the_conversation(tmp_path):
    model = talker(tmp_path, max_len=311)
    model.net.head.bias = torch.nn.Parameter(torch.zeros(len(model.tokenizer)))
    over = model.tokenizer.special_ids["<|over|>"]
    talk = Chat(model, system="rhyme")
    model.net.head.bias.data[over] = 4.0
    finishes = set()
    for seed in range(5):
        before = [*talk.messages, {"role": "user", "content": f"turn {seed}"}]
        pieces = [*talk.say(f"turn {seed}", max_new_tokens=7, temperature=1.3, seed=seed)]
        (wanted,) = talk.model.generate([talk.encode(before)], max_new_tokens=7, temperature=1.3, seed=seed)
        assert "".join(pieces) == wanted.text
        assert talk.messages == [*before, {"role": "assistant", "content": wanted.text}]
        finishes.add(wanted.finish)
    assert "end" in finishes
    assert over not in model.ends


def test_a_conversation_loses_its_first_turns_but_not_the_system(tmp_path):
    talk = Chat(talker(tmp_path), system="be")
    for i in range(7):
        for _ in talk.say(f"number {i}", max_new_tokens=5):
            pass
    assert talk.left_out >= 2
    assert talk.left_out % 2 == 0
    assert talk.messages[0] == {"role": "system", "content": "be"}
    assert [m["role"] for m in talk.messages[1:]] == ["user", "assistant"] * ((len(talk.messages) - 1) // 2)
    assert talk.messages[-2]["content"] == "number 6"
    before = list(talk.messages)
    with pytest.raises(InputError, match=r"this turn is too long: .* tokens, where the model has room for 92"):
        next(talk.say("long " * 50, max_new_tokens=5))
    assert talk.messages == before


def test_an_answer_that_is_broken_off_counts_as_far_as_it_came(tmp_path):
    talk = Chat(talker(tmp_path))
    answer = talk.say("hi", max_new_tokens=20, min_length=20)
    said = next(answer)
    answer.close()
    assert talk.messages[-1] == {"role": "assistant", "content": said}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for %}", "its chat template is not valid"),
        ("{{ raise_exception('no turns') }}", "refuses this conversation: no turns"),
        ("{{ messages.__class__.__mro__ }}", "refuses this conversation: access to attribute '__class__'"),
        ("{{ 1 / 0 }}", "the model's chat template fails: ZeroDivisionError"),
    ],
)
def test_templates_that_go_wrong(tmp_path, template, message):
    with pytest.raises(InputError) as error:
        Chat(talker(tmp_path, chat_template=template)).encode([{"role": "user", "content": "hi"}])
    assert message in str(error.value)


# ---------------------------------------------------------------------------------------
# The commands


def run(folder, *arguments, input=""):
    return ready.run(*arguments, cwd=folder, env={"COLUMNS": "100"}, input=input)


def test_prompts_files_and_standard_input_give_the_same(work, model):
    options = ["--max-new-tokens", 9, "--seed", 3, "--temperature", 1.1]
    said = model.generate(PROMPTS[:3], max_new_tokens=9, seed=3, temperature=1.1)
    wanted = "---\n".join(f"{one.prompt}{one.text}\n" for one in said)
    assert run(work, "generate", "run-generate", *PROMPTS[:3], *options).stdout == wanted
    text = "".join(f"{prompt}\n" for prompt in PROMPTS[:3])
    assert run(work, "generate", "run-generate", *options, input=text).stdout == wanted
    (work / "prompts.txt").write_text(text)
    done = run(work, "generate", "run-generate", "--file", "prompts.txt", "--json", "--n", 2, *options)
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == [one.text for one in said]
    assert all(len(json.loads(line)["others"]) == 1 for line in done.stdout.splitlines())
    assert done.stderr == ""


def test_a_terminal_sees_it_written(work, model):
    """The same text, in pieces; and nothing of a stop string."""
    parent, child = pty.openpty()
    command = ["generate", "run-generate", "the red", "--max-new-tokens", "21", "--stop", "og", "--stop", "zz"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "regard", *command], stdout=child, stderr=subprocess.PIPE, cwd=work, env=environment
    ) as process:
        os.close(child)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(parent, 1 << 16):
                shown += part
        os.close(parent)
        process.communicate()
    (said,) = model.generate("the red", max_new_tokens=21, stop=["og", "zz"])
    assert shown.decode().replace("\r\n", "\n") == f"the red{said.text}\n"


def test_what_is_left_out_is_told(work, model):
    long = "the red dog " * 20
    dropped = len(model.tokenizer.encode(long)) + 1 + 7 - 97
    done = run(work, "generate", "run-generate", long, "--max-new-tokens", 7, "--stop", "QQ")
    assert done.returncode == 0
    first, second = done.stderr.splitlines()
    assert first == (
        f"warning: the prompt does not fit the model's context of 97 tokens: its first {dropped} are left out, and the"
        " last are kept"
    )
    assert second.startswith("warning: --stop ('QQ') was not met within ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "run-translate", "a"], "run-translate: was trained to translate, not to generate; give another"),
        (["generate", "run-generate", "a", "--file", "b"], "prompts and --file; give one of them"),
        (["generate", "run-generate", "a", "--n", 3, "--temperature", 0], "n (3): greedy search finds one text"),
        (["generate", "run-generate", "a", "--top-p", 0], "top_p (0.0) must be above 0 and at most 1"),
        (["generate", "run-generate", "a", "--stop", ""], "stop ('') must have at least one character"),
        (["generate", "run-generate", "a", "--max-new-tokens", 0], "max_new_tokens (0) must be at least 1"),
        (["generate", "run-generate", "--file", "none.txt"], "none.txt: cannot be read (No such file or directory)"),
        (["chat", "run-generate"], "run-generate: has no chat template (chat_template.jinja, or chat_template in"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(work, arguments, message):
    done = run(work, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {message}")


def test_a_chat_in_a_pipe(work, model, tmp_path):
    """A run directory with a template beside it: a turn a line, an answer each."""
    shutil.copytree(work / "run-generate", tmp_path / "talks")
    (tmp_path / "talks" / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }} {% endfor %}{{ '' if add_generation_prompt else 'no' }}"
    )
    done = run(tmp_path, "chat", "talks", "--temperature", 0, "--max-new-tokens", 5, input="the red\n\na dog\n")
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    ids = model.tokenizer.encode
    assert first == model.generate([ids("the red ")], temperature=0, max_new_tokens=5)[0].text
    whole = f"the red {first} a dog "
    assert second == model.generate([ids(whole)], temperature=0, max_new_tokens=5)[0].text

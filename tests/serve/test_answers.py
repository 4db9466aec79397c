"""Each endpoint's answers are the offline ones, whoever else is being served."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from regard.decode.chat import Chat
from toy import sentences


def near(mine, theirs):
    """Equal, numbers as far as rounding lets them be."""
    if isinstance(theirs, dict):
        assert mine.keys() == theirs.keys()
        return all(near(mine[key], theirs[key]) for key in theirs)
    if isinstance(theirs, (list, tuple)):
        return len(mine) == len(theirs) and all(map(near, mine, theirs))
    return mine == pytest.approx(theirs, rel=1e-5, abs=1e-5) if isinstance(theirs, float) else mine == theirs


def dicts(found):
    return [one.to_dict() for one in found]


def questions(models, n):
    """Requests of every kind, and what the models themselves say."""
    texts, draw = sentences(4 * n, seed=3), random.Random(5)
    for i in range(n):
        some = texts[4 * i : 4 * i + draw.randint(1, 3)]
        how = [{}, {"beam": 2, "n_best": 2}, {"temperature": 0.9, "seed": i, "top_k": 11}, {"align": True}][i % 4]
        found = models["translator"].translate([f"{t}. {t}" for t in some], max_length=13, **how)
        yield (
            "/translate",
            {"model": "translator", "texts": [f"{t}. {t}" for t in some], "max_length": 13, **how},
            dicts(found),
        )
        how = [{}, {"temperature": 0}, {"n": 2, "seed": i}, {"beam": 3}, {"stop": [" ", "e"], "seed": i}][i % 5]
        found = models["writer"].generate(some, max_new_tokens=5 + i % 7, **how)
        yield "/generate", {"model": "writer", "prompts": some, "max_new_tokens": 5 + i % 7, **how}, dicts(found)
        gaps = [f"{t} [MASK] {t}" for t in some]
        yield "/fill", {"model": "filler", "texts": gaps, "top": 3}, dicts(models["filler"].fill(gaps, top=3))
        pairs = [(t, texts[i]) for t in some] + some
        yield "/classify", {"model": "classifier", "texts": pairs}, dicts(models["classifier"].classify(pairs))
        yield "/tag", {"model": "tagger", "sentences": some}, dicts(models["tagger"].tag(some))


def test_sixteen_clients_get_the_offline_answers(client, models):
    asked = list(questions(models, 12))
    random.Random(1).shuffle(asked)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda one: client.fine(one[0], one[1]), asked))
    for (path, body, wanted), got in zip(asked, answers, strict=True):
        assert got["model"] == body["model"]
        assert near(got["answers"], json.loads(json.dumps(wanted))), (path, body)


def test_embeddings_are_the_offline_ones(client, models):
    texts = sentences(7, seed=11)
    got = client.fine("/embed", {"model": "filler", "texts": texts, "pool": "class"})
    assert near(got["vectors"], models["filler"].embed(texts, pool="class").tolist())


def test_a_text_with_nothing_to_translate_is_answered_too(client):
    assert client.fine("/translate", {"model": "translator", "texts": "…"})["answers"][0]["text"] == "…"


@pytest.fixture
def openai_client(client):
    openai = pytest.importorskip("openai", reason="the openai client is not installed")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{client.port}/v1", api_key="any", max_retries=0) as one:
        yield one


def test_completions_with_openais_client(openai_client, models):
    found = models["writer"].generate(["a dog", "two cats"], max_new_tokens=11, n=2, seed=5)
    got = openai_client.completions.create(model="writer", prompt=["a dog", "two cats"], max_tokens=11, n=2, seed=5)
    wanted = [said for one in found for said in (one, *one.others)]
    assert [choice.text for choice in got.choices] == [said.text for said in wanted]
    assert [choice.index for choice in got.choices] == [0, 1, 2, 3]
    assert got.usage.completion_tokens == sum(len(said.tokens) for said in wanted)
    assert {choice.finish_reason for choice in got.choices} <= {"stop", "length"}
    assert openai_client.models.list().data[0].id == "translator"
    assert openai_client.models.retrieve("writer").id == "writer"


@pytest.mark.parametrize("stop", [None, ["e", "zq"]])
def test_completions_that_are_streamed(openai_client, models, stop):
    [found] = models["writer"].generate(
        "a dog runs", max_new_tokens=23, n=2, seed=6, **({"stop": stop} if stop else {})
    )
    texts, finish = ["", ""], {}
    chunks = openai_client.completions.create(
        model="writer", prompt="a dog runs", max_tokens=23, n=2, seed=6, stop=stop, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    n_pieces = 0
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            n_pieces += bool(choice.text)
            finish[choice.index] = choice.finish_reason
        usage = chunk.usage
    assert texts == [found.text, found.others[0].text]
    assert finish == {
        i: "length" if said.finish == "length" else "stop" for i, said in enumerate((found, *found.others))
    }
    assert usage.completion_tokens == len(found.tokens) + len(found.others[0].tokens)
    assert n_pieces > 2 or stop


@pytest.mark.parametrize("stream", [False, True])
def test_chat_with_openais_client(openai_client, models, stream):
    talk = Chat(models["writer"], system="Be brief.")
    wanted = "".join(talk.say("a dog", max_new_tokens=13, seed=4, temperature=0.7))
    got = openai_client.chat.completions.create(
        model="writer",
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a dog"}]},
        ],
        max_completion_tokens=13,
        seed=4,
        temperature=0.7,
        stream=stream,
    )
    if stream:
        deltas = [chunk.choices[0].delta for chunk in got]
        assert deltas[0].role == "assistant"
        assert "".join(delta.content or "" for delta in deltas) == wanted
    else:
        assert got.choices[0].message.content == wanted
        assert got.usage.prompt_tokens == len(talk.encode(talk.messages[:2]))


def test_openais_client_is_told_what_is_wrong(openai_client):
    import openai

    with pytest.raises(openai.NotFoundError, match="model \\(nobody\\) is not served here"):
        openai_client.completions.create(model="nobody", prompt="a")
    with pytest.raises(openai.UnprocessableEntityError, match="tools: is not served here; leave it out"):
        openai_client.chat.completions.create(
            model="writer", messages=[{"role": "user", "content": "a"}], tools=[{"type": "function"}]
        )
    with pytest.raises(openai.UnprocessableEntityError, match="was trained to translate"):
        openai_client.completions.create(model="translator", prompt="a")

"""A language model's choice of a label is by its own probability of it; examples are balanced, and the same in every
longer prompt."""

import math
from collections import Counter

import pytest
import torch

from encode.models import TEXTS, TOKENS, fills, speaks
from regard import recipe
from regard.config import InputError
from regard.data.tokenizer import Tokenizer
from regard.encode.shots import TEMPLATE, classify_with_prompt, parse, pick
from regard.evaluate.shots import accuracy_over_shots

EXAMPLES = [(text, "animal" if "dog" in text else "none") for text in TEXTS[:61]]
LABELS = ["animal", "none"]


def logprob(model, prompt, label):
    """Of all tokens of prompt and label together; what the labels share is the same for each."""
    ids = [model.tokenizer.start, *model.tokenizer.encode(prompt + label)]
    scores = model.net(torch.tensor([ids[:-1]]))[0].double().log_softmax(-1)
    return sum(scores[i, id].item() for i, id in enumerate(ids[1:]))


def by_hand(model, prompt, labels):
    scores = [logprob(model, prompt, label) for label in labels]
    total = math.log(sum(map(math.exp, (s - max(scores) for s in scores)))) + max(scores)
    return {label: math.exp(s - total) for label, s in zip(labels, scores, strict=True)}


@pytest.mark.parametrize("kind", ["bpe", "characters"])
@pytest.mark.parametrize("preset", ["tiny_decoder", "tiny_lstm"])
@pytest.mark.parametrize("shots", [0, 2])
def test_the_choice_is_by_the_models_own_probability(kind, preset, shots):
    tokens = TOKENS if kind == "bpe" else Tokenizer.train(TEXTS, recipe.Tokenizer(kind="characters"))
    model = speaks(preset, tokens, **({"decoder": {"max_len": 337}} if preset == "tiny_decoder" else {"decoder": {}}))
    labels = ["good", "goods", "bad"]  # one begins another
    examples = [("a dog", "good"), ("a cat", "bad"), ("two birds", "goods")]
    found = classify_with_prompt(model, TEXTS[:3], labels, examples, shots, seed=3)
    shown = "".join(f"Text: {t}\nLabel: {a}\n\n" for t, a in pick(examples, shots, 3))
    for text, answer in zip(TEXTS[:3], found, strict=True):
        wanted = by_hand(model, f"{shown}Text: {text}\nLabel: ", labels)
        assert answer.probabilities == pytest.approx(wanted, abs=1e-5)
        assert answer.label == max(wanted, key=wanted.get)


def test_a_batch_is_its_texts():
    model = speaks()
    together = classify_with_prompt(model, TEXTS[:19], LABELS)
    for text, found in zip(TEXTS, together, strict=False):
        [alone] = classify_with_prompt(model, [text], LABELS)
        assert found.probabilities == pytest.approx(alone.probabilities, abs=1e-6)


def test_examples_are_balanced_and_stay():
    many = pick(EXAMPLES, 8, seed=5)
    assert Counter(label for _, label in many) == {"animal": 4, "none": 4}
    for k in range(8):
        assert pick(EXAMPLES, k, seed=5) == many[:k]
    assert pick(EXAMPLES, 8, seed=6) != many
    rare = [*EXAMPLES[:1], *((t, a) for t, a in EXAMPLES if a == "animal")]
    assert len(set(map(tuple, pick(rare, len(rare))))) == len(set(rare))


def test_a_template_of_ones_own():
    model = speaks()
    [found] = classify_with_prompt(model, ["a dog"], LABELS, template="{text} is {label}.")
    assert found.probabilities == pytest.approx(by_hand(model, "a dog is ", LABELS), abs=1e-6)
    assert parse(TEMPLATE) == ("Text: ", "\nLabel: ", "\n\n")


def test_accuracy_over_shots(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.evaluate.shots.PROMPTED", 19)
    model = speaks(decoder={"max_len": 499})
    calls, told = [], []

    def answer(texts, shots):
        calls.append((len(texts), shots))
        return classify_with_prompt(model, texts, LABELS, EXAMPLES, shots)

    test = [(t, "animal" if "dog" in t else "none") for t in TEXTS[61:92]]
    watch = {"progress": lambda *seen: told.append(seen)}
    found = accuracy_over_shots({"tiny": answer}, test, (0, 1, 3), name="toy", **watch)
    assert calls == [(n, shots) for shots in (0, 1, 3) for n in (19, 12)]
    assert [seen[:2] for seen in told] == [(n, 93) for n in (19, 31, 50, 62, 81, 93)]
    assert told[-1][2] == f"tiny, 3 shots: {found.curves['tiny'][2].accuracy:.1f}% right"
    for point in found.curves["tiny"]:
        said = [f.label for f in classify_with_prompt(model, [t for t, _ in test], LABELS, EXAMPLES, point.shots)]
        assert point.accuracy == pytest.approx(100 * sum(s == w for s, (_, w) in zip(said, test, strict=True)) / 31)
        assert point.low <= point.accuracy <= point.high
    commonest = max(Counter(label for _, label in test).values())
    assert found.chance == pytest.approx(100 * commonest / 31)
    first = found.draw(tmp_path / "a.svg").read_bytes()
    assert found.draw(tmp_path / "b.svg").read_bytes() == first
    assert found.draw(tmp_path / "a.png").stat().st_size > 1000
    with pytest.raises(InputError, match=r"a\.txt: a picture must be \.png or \.svg"):
        found.draw(tmp_path / "a.txt")
    assert found.to_dict()["curves"]["tiny"][2]["shots"] == 3


def test_mistakes():
    model = speaks()
    with pytest.raises(InputError, match=r"labels \(none\): a choice needs at least two"):
        classify_with_prompt(model, ["a"])
    with pytest.raises(InputError, match="its label 'none' is none of animal, plant"):
        classify_with_prompt(model, ["a"], ["animal", "plant"], EXAMPLES)
    with pytest.raises(InputError, match=r"shots \(62\) must be from 0 to 61"):
        classify_with_prompt(model, ["a"], LABELS, EXAMPLES, 62)
    with pytest.raises(InputError, match=r"tokens, more than the 97 of this model; give fewer shots than 8"):
        classify_with_prompt(model, ["a"], LABELS, EXAMPLES, 8)
    with pytest.raises(InputError, match="more than the 97 of this model; shorten the texts"):
        classify_with_prompt(model, ["dog " * 97], LABELS)
    for template in ("{text}", "{label} {text}", "{text}{label}", "{text} {text} {label}"):
        with pytest.raises(InputError, match=r"^template \("):
            classify_with_prompt(model, ["a"], LABELS, template=template)
    with pytest.raises(InputError, match="was trained to fill, not to generate"):
        classify_with_prompt(fills(), ["a"], LABELS)
    with pytest.raises(InputError, match="label 2 is empty"):
        classify_with_prompt(model, ["a"], ["good", " "])

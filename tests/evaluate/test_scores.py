"""Scores are sacreBLEU's own, their intervals and p-values too; whatever is said of a part is true of the part alone."""

import random
import sys

import numpy as np
import pytest
import sacrebleu
import sacremoses
from sacrebleu.significance import PairedTest

import toy
from regard.config import InputError
from regard.evaluate import bleu, chrf, difference, moses_bleu
from regard.evaluate.scores import SAMPLES, check_language

METRICS = {"BLEU": (bleu, sacrebleu.BLEU), "chrF2": (chrf, sacrebleu.CHRF)}


def damaged(texts, share, seed):
    """Texts with a share of the words replaced by others: what a system of some quality might have written."""
    draw = random.Random(seed)
    return [" ".join(w if draw.random() > share else draw.choice(toy.WORDS) for w in t.split()) for t in texts]


@pytest.fixture(autouse=True)
def their_seed(monkeypatch):
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)  # it would be another one than ours


TEXTS = toy.sentences(211, seed=3, most=17)
REFERENCES = [TEXTS, damaged(TEXTS, 0.1, 5)]
SYSTEM = damaged(TEXTS, 0.3, 7)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("n_references", [1, 2])
def test_a_score_its_interval_and_its_signature_are_sacrebleus(name, n_references):
    ours, theirs = METRICS[name]
    metric, references = theirs(), REFERENCES[:n_references]
    expected = metric.corpus_score(SYSTEM, references, n_bootstrap=SAMPLES)
    score = ours(SYSTEM, references)
    assert score.name == expected.name == name
    assert score.value == pytest.approx(expected.score, abs=1e-9)
    assert score.signature == str(metric.get_signature())
    low, high = score.interval
    assert low < score.value < high
    # Theirs adds up float32.
    assert (high - low) / 2 == pytest.approx(expected._ci, abs=1e-4)
    assert score.samples.mean() == pytest.approx(expected._mean, abs=1e-4)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("share", [0.31, 0.33, 0.36])
def test_the_p_value_is_sacrebleus(name, share):
    ours, theirs = METRICS[name]
    other = damaged(TEXTS, share, 11)
    systems = [("first", SYSTEM), ("second", other)]
    _, found = PairedTest(systems, {name: theirs()}, REFERENCES, test_type="bs", n_samples=SAMPLES)()
    first, second = found[name]
    result = difference(ours(SYSTEM, REFERENCES), ours(other, REFERENCES))
    assert (result.first, result.second) == pytest.approx((first.score, second.score))
    assert result.p == pytest.approx(second.p_value, abs=1.5 / SAMPLES)  # one sample may be on the edge
    assert result.low < result.difference < result.high


def test_of_two_systems():
    good, bad = (moses_bleu(damaged(TEXTS, share, 13), REFERENCES) for share in (0.1, 0.5))
    better, worse, same = difference(bad, good), difference(good, bad), difference(good, good)
    assert better.p == worse.p < 0.01
    assert better.difference == -worse.difference == good.value - bad.value
    assert 0 < better.low < better.high
    assert (same.difference, same.low, same.high, same.p) == (0, 0, 0, 1)


def test_systems_of_the_same_quality_differ_by_chance():
    ps = [
        difference(bleu(damaged(TEXTS, 0.3, seed), REFERENCES), bleu(damaged(TEXTS, 0.3, seed + 100), REFERENCES)).p
        for seed in range(11)
    ]
    assert np.median(ps) > 0.1


def test_only_scores_of_one_kind_and_of_the_same_sentences_are_compared():
    with pytest.raises(InputError, match="only scores of one kind"):
        difference(bleu(SYSTEM, REFERENCES), chrf(SYSTEM, REFERENCES))
    with pytest.raises(InputError, match=r"211 sentences .* and 210"):
        difference(bleu(SYSTEM, [TEXTS]), bleu(SYSTEM[1:], [TEXTS[1:]]))


# ---------------------------------------------------------------------------------------
# As papers print it

ODD = ["\"Dogs\" & cats: it's a dark-haired man's <b> 3.5 %, isn't it?", "L'homme d'à côté, Dr. Müller etc."]


@pytest.mark.parametrize("language", ["en", "de", "fr"])
def test_tokenised_lowercased_bleu(language):
    hypotheses, references = [*ODD, "A dog ."], [[ODD[0].replace("cats", "Cats"), ODD[1].upper(), "a dog runs."]]
    moses = sacremoses.MosesTokenizer(lang=language)

    def prepared(texts):
        return [" ".join(moses.tokenize(t, aggressive_dash_splits=False, escape=False)).lower() for t in texts]

    expected = sacrebleu.corpus_bleu(
        prepared(hypotheses), [prepared(lines) for lines in references], tokenize="none", force=True
    )
    score = moses_bleu(hypotheses, references, language)
    assert score.value == pytest.approx(expected.score)
    assert score.value > bleu(hypotheses, references).value  # case no longer counts
    assert f"case:lc|eff:no|tok:moses-{language}-sacremoses-{sacremoses.__version__}|" in score.signature


def test_moses_does_not_split_at_dashes():
    assert moses_bleu(["dark-haired & so on"], [["dark-haired & so on"]]).counts[0, 0] == 4  # words


def test_what_is_no_language_is_refused():
    """One that Moses has no abbreviations of is tokenised all the same."""
    with pytest.raises(InputError, match=r"language \(german\) must be the code of one"):
        check_language("german")
    check_language("tr")
    assert moses_bleu(["bir kedi."], [["bir kedi."]], "tr").counts[0, 0] == 3


def test_the_language_matters():
    text = ["l'homme arrive"]
    assert moses_bleu(text, [text], "fr").counts[0, 0] == moses_bleu(text, [text], "en").counts[0, 0] == 3
    text = ["the dog's tail"]
    assert moses_bleu(text, [text], "en").counts[0, 0] != moses_bleu(text, [text], "de").counts[0, 0]


# ---------------------------------------------------------------------------------------
# Parts


def test_a_bucket_is_scored_as_if_it_were_alone():
    score = bleu(SYSTEM, REFERENCES)
    buckets = score.by_length(TEXTS)
    assert [b.words for b in buckets] == ["1-5", "6-10", "11-20"]  # longer ones there are none
    assert sum(b.sentences for b in buckets) == len(TEXTS)
    for bucket, (least, most) in zip(buckets, [(1, 5), (6, 10), (11, 20)], strict=True):
        inside = [i for i, text in enumerate(TEXTS) if least <= len(text.split()) <= most]
        assert bucket.sentences == len(inside)
        alone = sacrebleu.corpus_bleu([SYSTEM[i] for i in inside], [[lines[i] for i in inside] for lines in REFERENCES])
        assert bucket.score == pytest.approx(alone.score)


def test_where_buckets_begin_and_end():
    lengths = [0, 1, 5, 6, 10, 11, 20, 21, 30, 31, 50, 51, 997]
    texts = [" ".join(["w"] * n) for n in lengths]
    buckets = bleu(["a"] * 13, [["a"] * 13]).by_length(texts)
    names = ["1-5", "6-10", "11-20", "21-30", "31-50", ">50"]
    assert [(b.words, b.sentences) for b in buckets] == list(zip(names, [3, 2, 2, 2, 2, 2], strict=True))


def test_the_order_of_sentences_does_not_matter():
    order = random.Random(17).sample(range(len(TEXTS)), len(TEXTS))
    moved = chrf([SYSTEM[i] for i in order], [[lines[i] for i in order] for lines in REFERENCES])
    assert moved.value == pytest.approx(chrf(SYSTEM, REFERENCES).value)


def test_empty_texts_have_a_score():
    for metric in (bleu, chrf, moses_bleu):
        assert metric(["", ""], [["a dog", ""]]).value == 0
        assert metric([""], [[""]]).interval == (0, 0)


# ---------------------------------------------------------------------------------------
# Mistakes


def test_a_list_that_is_too_short_is_refused():
    with pytest.raises(InputError, match=r"^2 translations and 1 lines of reference 2: give as many of each$"):
        bleu(["a", "b"], [["a", "b"], ["a"]])
    with pytest.raises(InputError, match=r"^3 texts and 2 translations: give as many of each$"):
        bleu(["a", "b"], [["a", "b"]]).by_length(["a", "b", "c"])
    for nothing in ([], [[]]):
        with pytest.raises(InputError, match="nothing to score"):
            bleu([], nothing)


@pytest.mark.parametrize("package", ["sacrebleu", "sacremoses"])
def test_a_missing_package_is_named(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"^scores need {package}; install it: pip install {package}$"):
        moses_bleu(["a"], [["a"]])

"""What is told of a search is what the search did: the same answers, the model's own numbers, and nothing better left
behind; and what is drawn of it is safe to put on a page."""

import dataclasses
import html.parser
import itertools
import json
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch

from regard import Model, Transformer, recipe
from regard.data.tokenizer import Tokenizer
from regard.decode.translate import aligning_layer
from regard.look.page import as_text, printable
from regard.look.trace import trace
from regard.look.tree import nodes
from regard.schema import ConfigError, InputError

TEXT = "a dog runs over the lazy fox"
HOSTILE = (
    "<script>alert(1)</script>",
    "a&b",
    "\"quoted'",
    "line\nend\x1b[31m",
    "$x_1$",
    "שלום",
    "\u202eevil",
    "]]>",
    "犬",
)
MODELS = {
    "stack": ({"preset": "tiny_encoder_decoder", **{t: {"max_len": 97} for t in ("encoder", "decoder")}}, "translate"),
    "recurrent": ({"preset": "tiny_bahdanau"}, "translate"),
    "language": ({"preset": "tiny_decoder"}, "generate"),
    "windows": ({"preset": "tiny_decoder", "decoder": {"windows": [3, 2]}}, "generate"),
    "captions": ({"preset": "tiny_captioner"}, "caption"),
    "show": ({"preset": "tiny_show_attend_tell"}, "caption"),
}
HOWS = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4},
    "several": {"beam": 5, "n_best": 3, "length_penalty": 1.0, "min_length": 3},
    "drawn": {"temperature": 1.3, "seed": 5},
    "drawn from few": {"temperature": 0.9, "n_best": 3, "top_k": 7, "top_p": 0.9, "seed": 2, "repetition_penalty": 1.7},
}
LIMIT = 11


def build(name, ends=3.0):
    """A model that ends now and then."""
    torch.manual_seed(7)
    table, task = MODELS[name]
    tokens = Tokenizer.train([TEXT], recipe.Tokenizer(kind="characters"))
    net = Transformer(recipe.model_config(table, vocab_size=len(tokens)))
    for parameter in net.parameters():  # so that not all are alike
        parameter.data *= 2.5 if parameter.dim() > 1 else 1
    net.head.bias = torch.nn.Parameter(torch.zeros(len(tokens)))
    net.head.bias.data[tokens.end] = ends
    net.head.bias.data[tokens.byte_ids] = -2.0
    return Model(net.requires_grad_(False), task, tokens)


def asked(model, how):
    """An input, the model's own job, and its options."""
    how = dict(how)
    if model.task == "generate":
        how = {"max_new_tokens": LIMIT, "n": how.pop("n_best", 1), **how}
        return "a dog", model.generate, how
    given = np.arange(12 * 12 * 3, dtype=np.uint8).reshape(12, 12, 3) if model.task == "caption" else "a dog runs"
    return given, getattr(model, model.task), {"max_length": LIMIT, **how}


def traced(name, how, ends=3.0, **more):
    model = build(name, ends)
    given, job, options = asked(model, {**HOWS[how], **more})
    return model, trace(model, given, **options), job([given], **options)[0]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", MODELS)
def test_the_answer_is_the_models_own_and_so_is_its_score(name, how):
    for ends in (0.0, 3.0):
        _, seen, own = traced(name, how, ends)
        assert seen.answer == own
        answers = [one for one in seen.finished if one.answer]
        assert [one.text for one in answers] == [one.text for one in (own, *own.others)]
        assert [one.logprob for one in answers] == [one.logprob for one in (own, *own.others)]
        if hasattr(own, "score"):
            assert [one.score for one in answers] == [one.score for one in (own, *own.others)]
        for one in answers:
            *_, way = seen.path(one.step, one.way)
            last = next(c for c in way.candidates if c.id == one.id)
            assert last.total == pytest.approx(one.logprob, abs=1e-4)
            assert one.ended == (last.fate == "ended")
        if name == "stack":  # the letters of a path are its text
            [first, *_] = answers
            letters = seen.path(first.step, first.way)[-1].text
            if first.ended and "\ufffd" not in letters:  # bytes that are none are left out of an answer
                assert letters == first.text


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", MODELS)
def test_with_the_shapes_of_a_gpu_all_is_the_same(name, how, monkeypatch):
    """Where rows and positions are more than needed, and a search goes on for a while when it is over."""
    _, seen, _ = traced(name, how)
    monkeypatch.setattr("regard.decode.recorded.fixed_shapes", lambda device: True)
    model = build(name)
    given, _, options = asked(model, HOWS[how])
    again = trace(model, given, **options)
    assert again.over == seen.over
    assert len(again.steps) == len(seen.steps)
    assert [one.text for one in again.finished] == [one.text for one in seen.finished]
    for mine, theirs in zip(again.steps, seen.steps, strict=True):
        assert mine.sees == theirs.sees
        assert [way.text for way in mine.ways] == [way.text for way in theirs.ways]
        assert [[c.fate for c in way.candidates] for way in mine.ways] == [
            [c.fate for c in w.candidates] for w in theirs.ways
        ]
        for one, other in zip(mine.ways, theirs.ways, strict=True):
            assert (one.attention or ()) == pytest.approx(other.attention or (), abs=1e-4)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", MODELS)
def test_what_is_taken_is_the_best_of_all_that_is_shown(name, how):
    for ends in (0.0, 3.0):
        _, seen, _ = traced(name, how, ends)
        for t, step in enumerate(seen.steps):
            shown = [one for way in step.ways for one in way.candidates]
            chosen = [one for one in shown if one.fate != "pruned"]
            left = [one for one in shown if one.fate == "pruned"]
            assert chosen
            if "temperature" in HOWS[how]:
                assert all(one.share > 0 for one in chosen)
                assert len({one.id for one in chosen}) <= len(chosen)
                continue
            if seen.settings.ways == 1:
                assert [one.total for one in chosen] == [max(one.total for one in shown)]
                continue
            # Ends are passed over when they are not among the best; what goes on is better than all that does not.
            going = [one.total for one in chosen if one.fate != "ended"]
            assert len(going) == seen.settings.ways
            assert all(one.total <= min(going) for one in left if one.token != "</s>")
            among = sorted((one.total for one in shown), reverse=True)[: seen.settings.ways]
            assert all((one.fate == "ended") == (one.total in among) for one in shown if one.token == "</s>")
            then = {into: one for one in shown for into in one.into}
            if t + 1 < len(seen.steps):
                assert sorted(then) == [way.number for way in seen.steps[t + 1].ways]
                assert all(way.total == then[way.number].total for way in seen.steps[t + 1].ways)
                assert all(way.token == then[way.number].token for way in seen.steps[t + 1].ways)


@pytest.mark.parametrize("how", ["beam", "drawn"])
@pytest.mark.parametrize("name", MODELS)
def test_the_numbers_are_those_of_the_model_without_a_cache(name, how):
    model, seen, _ = traced(name, how)
    given, *_ = asked(model, {})
    writes = model.tokenizer
    memory, prompt = None, [*model.prefix, *writes.encode("a dog")]
    if model.task == "translate":
        memory, prompt = model.net.encode(torch.tensor([[*writes.encode(given), writes.end]])), [writes.start]
    elif model.task == "caption":
        from regard.encode import images

        memory, prompt = model.net.encode(next(iter(images.batches(model, [given])))), [writes.start]
    assert seen.prompt == tuple(map(writes.token, prompt))
    layer, ids = aligning_layer(model), {writes.token(id): id for id in range(len(writes))}
    for t, step in enumerate(seen.steps):
        for way in step.ways:
            tokens = [ids[one.token] for one in seen.path(t, way.number)[1:]]
            decoded = model.net.decode(torch.tensor([[*prompt, *tokens]]), memory, capture=[layer] if layer else [])
            logprobs = model.net.logits(decoded.hidden)[0, -1].log_softmax(-1)
            for one in way.candidates:
                assert one.logprob == pytest.approx(float(logprobs[one.id]), abs=1e-4)
            best = logprobs.index_fill(0, torch.tensor(model.never), -torch.inf).topk(5).values
            assert [one.logprob for one in way.candidates][:5] == pytest.approx(best.tolist(), abs=1e-4)
            if layer is None:
                assert way.attention is None
            else:
                own = decoded.attended[layer].weights()[0, :, -1].mean(0)
                assert way.attention == pytest.approx(own.tolist(), abs=1e-4)
                assert len(way.attention) == len(seen.source)


@pytest.mark.parametrize("name", ["stack", "windows", "recurrent"])
def test_the_mask_is_what_the_layers_may_see(name):
    model, seen, _ = traced(name, "greedy", ends=0.0)
    if name == "recurrent":
        assert {step.sees for step in seen.steps} == {None}
        return
    layers = [layer for layer in model.net.attention_layers()["decoder"] if layer.endswith(".self")]
    n = len(seen.prompt) - 1 + len(seen.steps)
    ids = torch.full((1, n), 5)
    memory = model.net.encode(ids) if model.net.encoder is not None else None
    attended = model.net.decode(ids, memory, capture=layers).attended
    may = sum(attended[layer].weights()[0].sum(0) for layer in layers) > 0
    for t, step in enumerate(seen.steps):
        seen_there = may[len(seen.prompt) - 1 + t].nonzero().flatten().tolist()
        assert list(range(*step.sees)) == seen_there
    assert (seen.steps[-1].sees[0] > 0) == (name == "windows")


def test_every_reason_is_given_where_it_is_so():
    fates, over = {}, set()
    for name, ends, far in itertools.product(("stack", "recurrent"), (-9.0, 1.0, 2.0, 3.0, 4.0), (False, True)):
        _, seen, _ = traced(name, "beam", ends, length_penalty=1.0 + far, max_length=31 if far and ends > 0 else LIMIT)
        over.add(seen.over)
        for t, step in enumerate(seen.steps):
            for one in (one for way in step.ways for one in way.candidates):
                fates.setdefault(one.fate, set()).add(one.why.split(":")[0].split(",")[0])
                if one.fate != "pruned" and one.fate != "taken" and one.fate != "ended":
                    assert t == len(seen.steps) - 1
        ended = [one for one in seen.finished if one.ended]
        told = [one for step in seen.steps for way in step.ways for one in way.candidates if one.fate == "ended"]
        assert len(ended) == len(told)
        kept = seen.finished[: seen.settings.ways]
        assert [one.score for one in kept if one.ended] == sorted((o.score for o in kept if o.ended), reverse=True)
    assert fates["pruned"] == {"beyond the beam of 4", "its end is not among the 4 best"}
    assert {"taken", "ended", "cut", "stopped"} <= fates.keys()
    assert fates["cut"] == {f"cut off after {n} tokens" for n in (LIMIT, 31)}
    enough = "4 have finished that score at least as much as the best that goes on"
    limits = {f"the limit of {n} tokens is reached" for n in (LIMIT, 31)}
    assert over == {*limits, "what goes on cannot beat what is finished", enough}


def test_a_stop_string_ends_a_way():
    model = build("language", ends=-9.0)
    plain = model.generate("a dog", beam=1, max_new_tokens=LIMIT)[0]
    stop = plain.text[2:4]
    seen = trace(model, "a dog", beam=1, max_new_tokens=LIMIT, stop=[stop])
    assert seen.answer == model.generate("a dog", beam=1, max_new_tokens=LIMIT, stop=[stop])[0]
    assert seen.answer.finish == "stop"
    assert seen.steps[-1].ways[0].candidates[0].why == "the most likely; met a stop string"
    assert seen.over == "all have ended"


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("...", {}, "nothing to translate"),
        (["a dog"], {}, "must be one text"),
        ("a dog " * 300, {}, "give one sentence"),
        ("a dog", {"beam": 0}, r"beam \(0\) must be at least 1"),
    ],
)
def test_mistakes(given, options, message):
    with pytest.raises((InputError, ConfigError), match=message):
        trace(build("stack"), given, **options)


# ---------------------------------------------------------------------------------------
# Pictures and pages


def hostile(seen):
    """The same with names that would break out of a page."""
    names = iter(range(10**6))
    evil = lambda: HOSTILE[next(names) % len(HOSTILE)]  # noqa: E731
    steps = []
    for step in seen.steps:
        ways = []
        for way in step.ways:
            candidates = tuple(dataclasses.replace(one, token=evil()) for one in way.candidates)
            ways.append(dataclasses.replace(way, token=evil(), text=way.text + evil(), candidates=candidates))
        steps.append(dataclasses.replace(step, ways=tuple(ways)))
    answer = dataclasses.replace(seen.answer, text="".join(HOSTILE))
    source = tuple(evil() for _ in seen.source)
    return dataclasses.replace(
        seen, steps=tuple(steps), answer=answer, source=source, prompt=tuple(evil() for _ in seen.prompt)
    )


class Elements(html.parser.HTMLParser):
    """The elements of a page, and what its scripts hold."""

    def __init__(self, text):
        super().__init__()
        self.names, self.scripts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.names.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.names and self.names[-1][0] == "script":
            self.scripts.append(data)


@pytest.mark.parametrize("how", HOWS)
def test_the_tree_has_all_that_went_on_and_finished(how):
    pruned = 0
    for name, ends in itertools.product(("stack", "recurrent"), (0.0, 3.0)):
        _, seen, _ = traced(name, how, ends)
        root = ET.fromstring(seen.svg())
        boxes = nodes(seen)
        assert len({(node.column, node.line) for node in boxes}) == len(boxes)  # none on another
        alive = {node.place for node in boxes if node.alive}
        assert alive == {(t, way.number) for t, step in enumerate(seen.steps) for way in step.ways}
        finished = [node for node in boxes if node.kind in ("ended", "cut")]
        assert len(finished) == len({(one.step, one.way, one.id) for one in seen.finished})
        best = seen.finished[0]
        bold = {node.place for node in boxes if node.answer and node.alive}
        assert {(t, way.number) for t, way in enumerate(seen.path(best.step, best.way))} <= bold
        titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
        shown = {one.why for step in seen.steps for way in step.ways for one in way.candidates if one.fate == "pruned"}
        assert sum(title.split("\n")[-1] in shown for title in titles) >= sum(n.kind == "pruned" for n in boxes)
        pruned += sum(node.kind == "pruned" for node in boxes)
    assert pruned


def test_hostile_names_stay_text():
    _, seen, _ = traced("stack", "several")
    evil = hostile(seen)
    root = ET.fromstring(evil.svg())
    assert not [e for e in root.iter() if e.tag.endswith("script")]
    assert "\u202e" not in evil.svg()
    assert any("<script>" in (e.text or "") for e in root.iter())
    page = Elements(evil_page := page_of(evil))
    assert [attrs.get("type") for tag, attrs in page.names if tag == "script"] == ["application/json", "module"]
    assert json.loads(page.scripts[0]) == json.loads(json.dumps(evil.to_dict()))
    assert "http://www.w3.org" in evil_page
    assert "https:" not in evil_page
    assert "src=" not in evil_page


def page_of(seen):
    from regard.look.tree import page

    return page(seen)


def test_plain_values_have_every_text_once():
    _, seen, _ = traced("stack", "beam", ends=0.0)
    told = seen.to_dict()
    assert json.loads(json.dumps(told)) == told
    for t, step in enumerate(seen.steps):
        for way in step.ways:
            chain = [
                next(w for w in told["steps"][i]["ways"] if w["number"] == one.number)
                for i, one in enumerate(seen.path(t, way.number))
            ]
            assert "".join(w["added"] for w in chain) == way.text


@pytest.mark.parametrize("length", [5, 61])
def test_it_is_as_wide_as_a_page_at_any_length(length, tmp_path):
    model = build("stack", ends=-9.0)
    seen = trace(model, "a dog", beam=4, max_length=length)
    assert len(seen.steps) == length
    root = ET.fromstring(seen.save(tmp_path / "a.svg").read_text(encoding="utf-8"))
    assert float(root.get("width")) <= 1_200
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y = float(rect.get("x", 0)), float(rect.get("y", 0))
        assert 0 <= x <= x + float(rect.get("width")) <= float(root.get("width"))
        assert 0 <= y <= y + float(rect.get("height")) <= float(root.get("height"))


def test_saved_as_a_picture_and_not_as_anything_else(tmp_path):
    _, seen, _ = traced("stack", "beam")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert hostile(seen).save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match=r"is \.svg, \.png or \.html"):
        seen.save(tmp_path / "a.gif")


# ---------------------------------------------------------------------------------------
# In a terminal


def given_up(seen):
    """How many ways nothing goes on from, and that have not finished either."""
    inner = {(t - 1, way.parent) for t, step in enumerate(seen.steps) for way in step.ways}
    ended = {(one.step, one.way) for one in seen.finished}
    return len({(t, way.number) for t, step in enumerate(seen.steps) for way in step.ways} - inner - ended)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", MODELS)
def test_the_text_of_a_tree_has_every_way_that_was_alive(name, how):
    _, seen, own = traced(name, how)
    written, _, start, *lines, _, over = as_text(seen.tree(), width=10_000).splitlines()
    assert written == f"written: {printable(own.text)}".rstrip()
    assert over == f"over: {seen.over}"
    leaves = [line for line in (start, *lines) if " ✗ " in line or re.search(r"  -?\d+\.\d\d(, the answer)?$", line)]
    whole = {(one.step, one.way, one.id) for one in seen.finished}
    assert len(leaves) == len(whole) + given_up(seen)
    assert sum(line.endswith(", the answer") for line in leaves) == len(
        {(o.step, o.way, o.id) for o in seen.finished if o.answer}
    )
    tokens = sum(len({(way.parent, way.token, way.number) for way in step.ways}) for step in seen.steps[1:])
    drawn = re.sub(r"[│├└─]| ✗ .*?$|  -?\d+\.\d\d(, the answer)?$", "", "\n".join((start, *lines)), flags=re.MULTILINE)
    assert len(drawn.split()) == 1 + tokens + len(whole), "each token once"


def test_the_text_of_a_long_tree_is_not_indented_without_end():
    model = build("windows", ends=-9.0)
    seen = trace(model, "a dog", beam=3, max_new_tokens=401)
    lines = as_text(seen.tree(), width=120).splitlines()[3:-2]
    assert max(len(re.match(r"[│├└─ \u00a0]*", line)[0]) for line in lines) == 4 * 17
    assert max(map(len, lines)) <= 120
    assert sum("✗" in line for line in lines) == given_up(seen) > 16


def test_a_step_of_a_table_is_a_line_for_every_way():
    _, seen, _ = traced("stack", "beam", ends=0.0, beam=2)
    told = as_text(seen, width=10_000)
    rows = told.split("not with\n")[1].split("\n\nover: ")[0].splitlines()
    ways = [(t, way) for t, step in enumerate(seen.steps) for way in step.ways]
    assert len(rows) == len(ways)
    for row, (t, way) in zip(rows, ways, strict=True):
        assert (f"{t + 1} " in row[:5]) == (way is seen.steps[t].ways[0])
        assert f" {way.total:.2f} " in row
        pruned = [one for one in way.candidates if one.fate in ("pruned", "stopped")]
        assert row.endswith(f"{pruned[0].token}: {pruned[0].why}")
        for one in way.candidates:
            if one.fate in ("taken", "ended", "cut"):
                assert f"{one.token} {math.exp(one.logprob):.0%}" in row


def test_hostile_names_stay_in_their_lines():
    _, seen, _ = traced("stack", "several")
    for told in (str(hostile(seen)), as_text(hostile(seen).tree())):
        assert "\x1b" not in told
        assert "\u202e" not in told
        assert "[31m" in told or "<script>" in told


# ---------------------------------------------------------------------------------------
# In a browser


def opened(browser, path):
    page = browser.new_page()
    page.wrong = []
    for event in ("pageerror", "dialog", "console", "requestfailed"):
        page.on(event, lambda what: page.wrong.append(str(what)))
    page.goto(path.as_uri())
    return page


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *(("stack", "several"), ("recurrent", "beam")),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("show", "greedy"), ("windows", "drawn"))),
    ],
)
def test_the_stepper_shows_each_step_as_it_was(browser, tmp_path, name, how):
    _, seen, _ = traced(name, how, ends=0.0)
    seen = seen if name == "show" else hostile(seen)
    page = opened(browser, seen.save(tmp_path / "a.html"))
    best = seen.finished[0]
    for t, way in enumerate(seen.path(best.step, best.way)):
        assert page.locator("output").inner_text() == f"step {t + 1} of {len(seen.steps)}"
        assert page.locator(".step-bars .name").all_text_contents() == [one.token for one in way.candidates]
        assert page.locator(".step-bars .why").all_text_contents() == [one.why for one in way.candidates]
        before = page.locator("section:has(> h3:text('written before')) .step-tok:not(.next)")
        assert before.all_text_contents() == [*seen.prompt, *(one.token for one in seen.path(t, way.number)[1:])]
        assert before.and_(page.locator(".hidden")).count() == (step.sees[0] if (step := seen.steps[t]).sees else 0)
        cells = page.locator(".step-image i" if seen.side else ".step-tok.read")
        assert cells.count() == (0 if way.attention is None else seen.side**2 if seen.side else len(seen.source))
        shares = [float(cell.get_attribute("title").split()[-2]) / 100 for cell in cells.all()]
        assert shares == pytest.approx(list(way.attention or [])[-len(shares) or 10**6 :], abs=6e-4)
        assert page.locator(".beam .here").count() >= 1
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Home")
    page.get_by_label("Next step").click()
    if len(seen.steps[1].ways) > 1:
        page.locator(".step-ways button").last.click()
        assert page.locator(".step-bars .name").all_text_contents() == [
            c.token for c in seen.steps[1].ways[-1].candidates
        ]
    page.locator(".beam [data-node='2-0']").first.click()
    assert page.locator("output").inner_text() == f"step 3 of {len(seen.steps)}"
    page.locator("input[type=range]").fill(str(len(seen.steps) - 1))
    assert "The search is over" in page.locator(".step-said").inner_text()
    assert page.wrong == []
    page.close()


def test_a_long_text_fits_a_phone(browser, tmp_path):
    model = build("windows", ends=-9.0)
    seen = hostile(trace(model, "a dog <b>runs</b> " * 120, beam=3, max_new_tokens=LIMIT))
    page = opened(browser, seen.save(tmp_path / "a.html"))
    page.set_viewport_size({"width": 360, "height": 700})
    for _ in range(3):
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        page.keyboard.press("ArrowRight")
    last = page.locator(".step-tok.next")
    box, row = last.bounding_box(), page.locator(".step-row").first.bounding_box()
    assert row["y"] - 1 <= box["y"] <= box["y"] + box["height"] <= row["y"] + row["height"] + 1  # pixels are rounded
    assert page.wrong == []
    page.close()

"""The page in a real browser: what every view shows is what the server answered, whatever was typed.

That the answers are the library's is tested elsewhere (tests/serve/test_page.py). Pictures of all views are left in
tests/browser/shots; with REGARD_SHOTS=docs those of README.md are made anew.
"""

import base64
import io
import math
import re
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pytest
from PIL import Image

from browser.conftest import of_docs, shot
from regard.model import SHIPPED

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = api.expect
expect.set_options(timeout=20_000)  # of a machine that has other things to do

SCRIPT = "<script>alert(1)</script> \"so\" & 'so' <img src=x onerror=alert(1)> </textarea>"
ARABIC = "الكلب القديم يركض <b>"
LONG = "the old dog " * 166 + "runs now"  # 2,000 characters, and tokens


def asked(page, path, act, /, **having):
    """What the server answers to the request that an act leads to, which has these values in its body."""

    def fits(request):
        if not request.url.endswith(f"/{path}"):
            return False
        sent = request.post_data_json
        return all(sent.get(name) == value for name, value in having.items())

    with page.expect_request_finished(fits) as got:  # the page calls off what it asked before, and that has no body
        act()
    return got.value.response().json()


def typed(page, path, text, /, **having):
    """What the server answers to a text that is typed."""
    return asked(page, path, lambda: page.locator("main textarea").first.fill(text), **having)


def percent(share):
    """As JavaScript rounds: a half goes up."""
    return f"{Decimal(100 * share).quantize(Decimal('0.1'), ROUND_HALF_UP)} %"


def shown_bars(page, label):
    rows = page.get_by_role("list", name=label, exact=True).locator(".bar")
    return list(zip(rows.locator(".name").all_text_contents(), rows.locator(".share").all_text_contents(), strict=True))


def tokens_of(page, label="Tokens of the text"):
    return page.get_by_role("listbox", name=label).locator(".tok").all_text_contents()


def settle(page):
    """Wait until nothing is asked any more, or about to be."""
    page.wait_for_selector("main:has(*)[aria-busy=false]")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 20)))")  # it is drawn


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    """An image, as a file."""
    y, x = np.mgrid[0:211, 0:307]
    pixels = np.stack([128 + 100 * np.sin(x / 40), 128 + 100 * np.cos(y / 30), (x + y) / 3], -1).clip(0, 255)
    pixels[70:140, 110:190] = 240, 220, 40
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


# ---------------------------------------------------------------------------------------
# Every view


def test_translate(visit):
    page = visit("translator")
    got = typed(page, "translate", "the old dog", texts=["the old dog"])["answers"][0]
    expect(page.locator(".said")).to_have_text(got["text"], use_inner_text=False)
    expect(page.locator(".others li")).to_have_count(3)
    assert page.locator(".others bdi").all_text_contents() == [one["text"] for one in got["others"]]
    assert page.locator(".others .share").all_text_contents() == [
        percent(math.exp(o["logprob"])) for o in got["others"]
    ]
    assert tokens_of(page, "Tokens of the translation") == got["tokens"]
    settle(page)
    fewer = asked(page, "translate", lambda: page.get_by_label("Beam").fill("2"), beam=2)["answers"][0]
    expect(page.locator(".others li")).to_have_count(1)
    expect(page.locator(".said")).to_have_text(fewer["text"])


def test_tokens_have_their_ids_under_the_pointer_and_under_the_arrow_keys(visit):
    page = visit("tagger")
    got = typed(page, "look/tokens", "two dogs", text="two dogs")
    strip = page.get_by_role("listbox", name="Tokens of the text")
    expect(strip.locator(".tok")).to_have_count(len(got["tokens"]))
    assert tokens_of(page) == got["tokens"]
    assert [
        *map(bool, strip.locator(".tok").evaluate_all("all => all.map(t => t.classList.contains('special'))"))
    ] == got["special"]
    strip.locator(".tok").nth(1).hover()
    expect(page.locator("#tip")).to_have_text(f"{got['tokens'][1]}\nid {got['ids'][1]}, token 2")
    page.mouse.move(0, 0)
    strip.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(strip.locator(".on")).to_have_text(got["tokens"][2])
    page.keyboard.press("End")
    expect(page.locator("#tip")).to_have_text(f"{got['tokens'][-1]}\nid {got['ids'][-1]}, token {len(got['ids'])}")


def shares(got, temperature, top_k, top_p):
    """As in jobs.js; that these are what the library draws by is tested in tests/serve/test_page.py."""
    at = [round(0.1 + 0.05 * i, 2) for i in range(39)].index(temperature)
    top = got["logits"][0] / temperature
    kept = [math.exp(logit / temperature - top) for logit in got["logits"]][: top_k or None]
    rest = got["rest"][at]
    others = 0.0 if top_k or rest is None else math.exp(rest - top)
    total, before, found = sum(kept) + others, 0.0, []
    for power in kept:
        found.append(power / total if before < top_p else 0.0)
        before += power / total
    beyond = others / total if before < top_p else 0.0
    found = [share / (sum(found) + beyond) for share in found]
    return found + [0.0] * (len(got["logits"]) - len(found))


def test_write(visit, server):
    page = visit("writer")
    got = typed(page, "look/next", "a dog", prompt="a dog")
    list_of = page.get_by_role("list", name="Next token")
    expect(list_of.locator(".name").first).to_have_text(got["tokens"][0])
    for label, value, how in [
        (None, None, (0.8, 0, 1.0)),
        ("Temperature", "1.5", (1.5, 0, 1.0)),
        ("Top k", "7", (1.5, 7, 1.0)),
        ("Top p", "0.5", (1.5, 7, 0.5)),
        ("Top k", "0", (1.5, 0, 0.5)),
    ]:
        if label:
            page.get_by_label(label).fill(value)
        wanted = shares(got, *how)[:40]
        assert shown_bars(page, "Next token") == [*zip(got["tokens"], map(percent, wanted), strict=False)]
        out = list_of.locator(".bar").evaluate_all("all => all.map(bar => bar.classList.contains('out'))")
        assert out == [share == 0 for share in wanted]
    settle(page)

    # A word that is clicked is appended.
    again = asked(page, "look/next", lambda: list_of.locator("button").nth(2).click(), prompt="a dog" + got["texts"][2])
    expect(list_of.locator(".name").first).to_have_text(again["tokens"][0])
    expect(page.locator("main textarea").first).to_have_value("a dog" + got["texts"][2])
    settle(page)

    # What is written is what the same request gives at once.
    with page.expect_request(lambda request: request.url.endswith("/v1/completions")) as sent:
        page.get_by_role("button", name="Write", exact=True).click()
    expect(page.get_by_role("button", name="Keep")).to_be_visible()
    body = sent.value.post_data_json
    assert (body["temperature"], body["top_p"], body.get("top_k")) == (1.5, 0.5, None)
    text = server.fine("/v1/completions", {**body, "stream": False})["choices"][0]["text"]
    assert page.locator(".said .new").text_content() == text
    whole = page.locator(".said").text_content()
    page.get_by_role("button", name="Keep").click()
    expect(page.locator("main textarea").first).to_have_value(re.sub(r"\r\n?", "\n", whole))


def test_chat(visit, server):
    page = visit("writer/chat")
    page.get_by_label("Message").fill(SCRIPT)
    with page.expect_request(lambda request: request.url.endswith("/v1/chat/completions")) as sent:
        page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden(timeout=20_000)
    answer = server.fine("/v1/chat/completions", {**sent.value.post_data_json, "stream": False})["choices"][0][
        "message"
    ]
    assert page.locator(".talk p").all_text_contents() == [SCRIPT, answer["content"]]
    page.get_by_role("button", name="Anew").click()
    expect(page.locator(".talk p")).to_have_count(0)


def test_fill(visit):
    page = visit("filler")
    text = "the [MASK] dog [MASK]"
    got = typed(page, "fill", text, texts=[text])["answers"][0]
    expect(page.locator(".said")).to_have_text(got["best"])
    for i, mask in enumerate(got["masks"]):
        assert shown_bars(page, f"Blank {i + 1}") == [(one["text"], percent(one["probability"])) for one in mask]
    settle(page)
    word = got["masks"][1][2]["text"]
    page.get_by_role("list", name="Blank 2").locator("button").nth(2).click()
    expect(page.locator("main textarea")).to_have_value(f"the [MASK] dog {word}")
    page.locator("main textarea").press("End")
    page.get_by_role("button", name="Insert [MASK]").click()
    expect(page.locator("main textarea")).to_have_value(f"the [MASK] dog {word}[MASK]")
    expect(page.get_by_role("list", name="Blank 2")).to_be_visible()


def test_classify(visit):
    page = visit("classifier")
    got = typed(page, "classify", "a dog", texts=["a dog"])["answers"][0]
    expect(page.locator(".said")).to_have_text(got["label"])
    wanted = sorted(got["probabilities"].items(), key=lambda one: -one[1])
    assert shown_bars(page, "Labels") == [(name, percent(share)) for name, share in wanted]


def test_tag(visit):
    page = visit("tagger")
    text = "two old dogs near the cat"
    got = typed(page, "tag", text, sentences=[text])["answers"][0]
    expect(page.locator(".tagged")).to_be_visible()
    settle(page)
    spans = page.locator(".tagged .span")
    assert [one.split("\n")[-1] for one in spans.all_inner_texts()] == [span["label"] for span in got["spans"]]
    said = page.locator(".tagged > span").evaluate_all("all => all.map(e => e.firstChild.textContent).join(' ')")
    assert said == " ".join(got["words"])
    page.locator(".tagged > span").first.hover()
    expect(page.locator("#tip")).to_contain_text(
        f"{got['words'][0]}: {got['tags'][0]} {percent(got['probabilities'][0])}"
    )


@pytest.mark.parametrize("name", ["filler", "matcher"])
def test_compare(visit, name):
    page = visit(f"{name}/compare")
    lines = ["the old dog", "a small cat", SCRIPT]
    got = typed(page, "embed", "\n".join(lines), texts=lines)["vectors"]
    canvas = page.get_by_role("img", name="Similarity of the lines")
    expect(canvas).to_be_visible()
    settle(page)
    canvas.focus()
    for keys, i, j in [("ArrowRight", 0, 0), ("ArrowRight", 0, 1), ("ArrowDown", 1, 1), ("ArrowLeft", 1, 0)]:
        page.keyboard.press(keys)
        cosine = f"{np.dot(got[i], got[j]):.3f}".replace("-", "\N{MINUS SIGN}")
        expect(page.locator(".readout").first).to_have_text(f"{lines[i]} · {lines[j]}: {cosine}")


def test_an_image_is_classified_and_its_rollout_laid_over_it(visit, photo):
    page = visit("seer")
    choose = page.get_by_label("Choose an image")
    rolled = asked(page, "look/rollout", lambda: choose.set_input_files(photo))
    expect(page.locator(".photo")).to_be_visible()
    weights = np.array(rolled["weights"])
    row, column = divmod(int(weights.argmax()), weights.shape[1])
    expect(page.locator(".looked")).to_contain_text(f"row {row + 1}, column {column + 1}: {percent(weights.max())}")
    expect(page.locator(".bars .bar")).to_have_count(3)

    # What counts least is the palest: nearest to the paper.
    shown = np.array(Image.open(io.BytesIO(page.locator(".photo canvas").screenshot())).convert("RGB"), float)
    plain = np.array(Image.open(io.BytesIO(base64.b64decode(rolled["image"]))).resize(shown.shape[1::-1]), float)
    cell = shown.shape[0] // weights.shape[0]
    changed = [
        np.abs(shown - plain)[y * cell + 9 : (y + 1) * cell - 9, x * cell + 9 : (x + 1) * cell - 9].mean()
        for y in range(5)
        for x in range(5)
    ]
    assert changed[int(weights.argmax())] == min(changed)

    seen = asked(
        page, "look/attention", lambda: page.get_by_role("radio", name="Layer 1").check(), layer="encoder.1.self"
    )
    expect(page.locator(".looked")).to_contain_text(f"What {seen['rows'][0]} looks at")
    page.locator(".photo canvas").hover(position={"x": 5, "y": 5})
    expect(page.locator(".looked")).to_contain_text("What 1,1 looks at")
    other = (seen["head"] + 1) % 3
    asked(page, "look/attention", lambda: page.get_by_role("radio", name=f"Head {other}").check(), head=other)
    shot(page, "image")


def test_labels_of_an_image_are_shown_as_text(visit, photo):
    page = visit("seer")
    got = asked(page, "classify", lambda: page.get_by_label("Choose an image").set_input_files(photo))["answers"][0]
    expect(page.locator(".said")).to_have_text(got["label"])
    wanted = sorted(got["probabilities"].items(), key=lambda one: -one[1])
    assert shown_bars(page, "Labels") == [(name, percent(share)) for name, share in wanted]


def test_a_caption_shows_where_each_word_looked(visit, photo):
    page = visit("captioner")
    got = asked(page, "look/caption", lambda: page.get_by_label("Choose an image").set_input_files(photo))
    expect(page.locator(".words button")).to_have_count(len(got["words"]))
    assert page.locator(".words button").all_text_contents() == got["words"]
    for i, word in enumerate(got["words"][:3]):
        page.locator(".words button").nth(i).focus()
        weights = np.array(got["weights"][i])
        row, column = divmod(int(weights.argmax()), weights.shape[1])
        expect(page.locator(".looked")).to_contain_text(
            f"“{word}” looked most at row {row + 1}, column {column + 1}: {percent(weights.max())}"
        )
        expect(page.locator(".words button").nth(i)).to_have_attribute("aria-pressed", "true")
    shot(page, "caption")


def test_match(visit, photo):
    page = visit("matcher")
    page.get_by_label("Choose an image").set_input_files(photo)
    lines = ["the old dog", SCRIPT, ARABIC]
    area = page.get_by_label("Texts, one a line")
    got = asked(page, "match", lambda: area.fill("\n".join(lines)), texts=lines)["answers"][0]
    expect(page.locator(".bars .bar")).to_have_count(3)
    assert shown_bars(page, "How well each text fits") == [*zip(lines, map(percent, got["probabilities"]), strict=True)]


def test_a_large_photo_is_made_smaller_first(visit, tmp_path):
    noise = np.random.default_rng(5).integers(0, 256, (701, 997, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    assert (tmp_path / "noise.png").stat().st_size > 1_048_576
    page = visit("seer")
    with page.expect_response(lambda response: response.url.endswith("/classify")) as got:
        page.get_by_label("Choose an image").set_input_files(tmp_path / "noise.png")
    assert got.value.status == 200


def test_what_is_no_image_is_refused_in_one_line(visit, tmp_path):
    (tmp_path / "no.png").write_text("no image")
    page = visit("seer", refusals=True)
    page.get_by_label("Choose an image").set_input_files(tmp_path / "no.png")
    expect(page.locator(".bad").first).to_contain_text("is not an image")


def test_draw(visit):
    page = visit("drawer")
    got = typed(page, "draw", "an old dog", texts=["an old dog"], seed=0)["answers"][0]
    images = page.locator(".drawn img")
    expect(images).to_have_count(8)
    assert [
        one.removeprefix("data:image/png;base64,") for one in images.evaluate_all("all => all.map(i => i.src)")
    ] == [one["image"] for one in got]
    assert images.evaluate_all("all => all.every(i => i.complete && i.naturalWidth === 15)")
    other = asked(page, "draw", lambda: page.get_by_role("button", name="Draw others").click(), seed=1)["answers"][0]
    assert other[0]["image"] != got[0]["image"]
    asked(page, "draw", lambda: page.get_by_role("radio", name="4", exact=True).check(), n=4)
    expect(images).to_have_count(4)


# ---------------------------------------------------------------------------------------
# Attention


@pytest.mark.parametrize(
    "name", ["writer", "filler", "classifier", "tagger", "translator", "searcher", "matcher/compare"]
)
def test_attention(visit, name):
    """Lines and matrix have the weights that the server sent, for layers and heads that are chosen by keys."""
    page = visit(name)
    text = "a [MASK] dog" if name == "filler" else "a dog"
    got = typed(page, "look/attention", text, text=text)
    panel = page.locator("details", has=page.locator("summary", has_text="What it looks at"))
    expect(panel.locator(".web ol").first.locator(".tok")).to_have_count(len(got["rows"]))
    settle(page)
    check_lines(page, panel, got)
    if name != "searcher":  # one layer, one head
        first = panel.get_by_role("radiogroup").first.get_by_role("radio").first
        first.focus()
        got = asked(page, "look/attention", lambda: page.keyboard.press("Space"), text=text)
        settle(page)
        check_lines(page, panel, got)
        chosen = panel.locator(".heads input:checked")
        chosen.focus()
        got = asked(page, "look/attention", lambda: page.keyboard.press("ArrowRight"), text=text)
        settle(page)
        expect(panel.locator(".heads input:focus")).to_have_count(1)  # and the next press goes on from there
        check_lines(page, panel, got)
        if got["head"] is not None:  # else the arrow has come there already
            got = asked(page, "look/attention", lambda: panel.get_by_label("Mean of all heads").check(), mean=True)
            settle(page)
            check_lines(page, panel, got)
    check_matrix(page, panel, got)


def check_lines(page, panel, got):
    rows, columns = (panel.locator(".web ol").nth(i).locator(".tok") for i in (0, 1))
    expect(rows).to_have_count(len(got["rows"]))
    assert rows.all_text_contents() == got["rows"]
    assert columns.all_text_contents() == got["columns"]
    i = len(got["rows"]) - 1
    rows.nth(i).hover()
    weights = np.array(got["weights"][i])
    best = int(weights.argmax())
    told = f"{got['rows'][i]} → {got['columns'][best]}: {percent(weights[best])}"
    expect(panel.locator(".readout").first).to_contain_text(told)
    expect(panel.locator(".matrix .readout")).to_have_text(told)
    strong = [j for j, share in enumerate(weights) if share >= 0.02]
    expect(panel.locator(".web path")).to_have_count(len(strong))
    shades = panel.locator(".web path").evaluate_all("all => all.map(p => Number(p.getAttribute('stroke-opacity')))")
    most = np.max(got["weights"])
    most = most if most < 0.5 else 1.0  # the strongest is as dark as can be, also where it is weak
    assert sorted(shades) == pytest.approx(sorted((weights[strong] / most) ** 0.6), abs=1e-3)
    expect(panel.locator(".ramp")).to_have_text(f"0{'100 %' if most == 1 else percent(most)}")
    panel.locator("summary").hover()


def check_matrix(page, panel, got):
    canvas = panel.locator(".matrix canvas")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    for i in range(min(3, len(got["rows"]))):
        for j in range(min(3, len(got["columns"]))):
            share = percent(got["weights"][i][j])
            told = f"{got['rows'][i]} → {got['columns'][j]}: {share}"
            expect(panel.locator(".matrix .readout")).to_have_text(told)
            page.keyboard.press("ArrowRight" if j < 2 else "ArrowDown")
        for _ in range(min(2, len(got["columns"]) - 1)):
            page.keyboard.press("ArrowLeft")
    page.keyboard.press("Tab")
    panel.locator("summary").hover()


def test_the_darkest_cell_is_the_strongest_look(visit):
    page = visit("writer")
    got = typed(page, "look/attention", "two dogs", text="two dogs")
    settle(page)
    page.locator("summary").first.hover()
    shown = np.array(Image.open(io.BytesIO(page.locator(".matrix canvas").screenshot())).convert("L"), float)
    last, cell = (
        np.array(got["weights"][-1]),
        30,
    )  # as wide as few cells are; the last row ends two pixels above the end
    line = shown[-cell:-4].mean(0)
    begin = int(line.argmin()) - cell * int(last.argmax())  # within the first cell, if it is as it should be
    pixels = [line[begin + cell * j] for j in range(len(last))]
    assert np.corrcoef(pixels, last**0.6)[0, 1] < -0.99  # the more, the darker


# ---------------------------------------------------------------------------------------
# The search


def test_the_tree_is_what_the_search_did(visit):
    page = visit("translator")
    got = typed(page, "look/trace", "a dog", text="a dog")
    panel = page.locator("details", has=page.locator("summary", has_text="How it chose"))
    expect(panel.locator(".node")).not_to_have_count(0)
    settle(page)
    drawn = {}
    for t, step in enumerate(got["steps"]):
        for way in step["ways"]:
            fates = [one for one in way["candidates"] if one["fate"] == "pruned"][:1]
            fates += [one for one in way["candidates"] if one["fate"] != "pruned"]
            drawn.setdefault(t, []).extend(f"{one['token']}: {percent(math.exp(one['logprob']))}" for one in fates)
    shown = panel.locator(".node").evaluate_all("all => all.map(n => [Number(n.dataset.t), n.dataset.tip])")
    for t, told in drawn.items():
        assert sorted(tip.split("\n")[0] for at, tip in shown if at == t) == sorted(told)
    tokens = [*got["answer"]["tokens"]]
    best = panel.locator(".node.best").evaluate_all("all => all.map(n => n.dataset.tip.split(': ')[0])")
    assert best[: len(tokens)] == tokens
    assert len(best) - len(tokens) in (0, 1)  # and the end
    whys = {one["why"] for step in got["steps"] for way in step["ways"] for one in way["candidates"]}
    assert {tip.split("\n")[2] for _, tip in shown} <= whys

    # Step by step, by keys; and a token that is clicked leads to its step.
    slider = panel.get_by_role("slider", name="Step")
    slider.focus()
    for t in (0, 1):
        expect(panel.locator(".step-bar output")).to_have_text(f"step {t + 1} of {len(got['steps'])}")
        ways = got["steps"][t]["ways"]
        expect(panel.locator(".step-ways button")).to_have_count(len(ways))
        names = panel.locator(".step-bars .name").all_text_contents()
        told = panel.locator(".step-bars .share").all_text_contents()
        at = int(
            panel.locator(".step-ways [aria-pressed=true]").evaluate("e => [...e.parentElement.children].indexOf(e)")
        )
        wanted = ways[at]["candidates"]
        assert [*zip(names, told, strict=True)] == [(one["token"], percent(math.exp(one["logprob"]))) for one in wanted]
        looked = panel.locator(".step-tok.read").evaluate_all("all => all.map(e => e.title)")
        assert looked == [percent(share) for share in ways[at]["attention"]]
        page.keyboard.press("ArrowRight")
    panel.locator('.node[data-step="1"]').first.click()
    expect(panel.locator(".step-bar output")).to_have_text(f"step 2 of {len(got['steps'])}")
    expect(panel.locator(".node.here")).to_have_count(1)


def test_a_token_that_was_written_lights_up_what_it_looked_at(visit):
    page = visit("translator")
    got = typed(page, "look/trace", "a dog", text="a dog")
    settle(page)
    answer = next(one for one in got["finished"] if one["answer"])
    way, ways = answer["way"], []
    for step in reversed(got["steps"][: answer["step"] + 1]):
        ways.insert(0, next(one for one in step["ways"] if one["number"] == way))
        way = ways[0]["parent"]
    for i in (0, 1):
        page.get_by_role("listbox", name="Tokens of the translation").locator(".tok").nth(i).hover()
        read = page.get_by_role("listbox", name="Tokens of the text").locator(".tok")
        told = read.evaluate_all("all => all.map(e => Number(e.style.background.match(/(\\d+)%/)?.[1]))")
        assert told == [math.floor(60 * share**0.6 + 0.5) for share in ways[i]["attention"]]


def test_the_sentence_is_chosen(visit):
    page = visit("translator")
    text = "a dog runs. The cat sleeps."
    got = typed(page, "look/trace", text, text=text)
    assert len(got["sentences"]) == 2
    other = asked(
        page,
        "look/trace",
        lambda: page.get_by_role("radiogroup", name="Sentence").get_by_role("radio").nth(1).check(),
        sentence=1,
    )
    seen = asked(page, "look/attention", lambda: None, text=other["text"])
    assert other["text"] == got["sentences"][1]
    assert seen["said"] == other["answer"]["text"]


# ---------------------------------------------------------------------------------------
# Whatever is typed


@pytest.mark.parametrize(
    ("where", "path", "key"),
    [
        ("translator", "translate", "texts"),
        ("writer", "look/next", "prompt"),
        ("filler", "fill", "texts"),
        ("classifier", "classify", "texts"),
        ("tagger", "tag", "sentences"),
        ("filler/compare", "embed", "texts"),
        ("drawer", "draw", "texts"),
    ],
)
def test_anything_is_shown_as_text(visit, where, path, key):
    page = visit(
        where, refusals=where in ("drawer", "translator", "searcher")
    )  # there is nothing to translate in ARABIC
    settle(page)
    for text in (SCRIPT, ARABIC, LONG):
        text = f"{text} [MASK]" if where == "filler" else text
        sent = text if key == "prompt" else [text]
        with page.expect_response(
            lambda response, sent=sent: (
                response.url.endswith(f"/{path}") and response.request.post_data_json.get(key) == sent
            )
        ) as answer:
            got = typed(page, "look/tokens", text, text=text)
        if where == "drawer" and text is not ARABIC:
            assert answer.value.status == 422
            expect(page.locator(".bad").first).to_contain_text("say it shorter")
        else:
            assert answer.value.status == 200
        settle(page)
        assert tokens_of(page) == got["tokens"]
        assert page.locator("main").locator("script, b:not(.step-said b), img:not(.drawn img)").count() == 0
        if where == "tagger":
            said = page.locator(".tagged > span").evaluate_all(
                "all => all.map(e => e.firstChild.textContent).join(' ')"
            )
            assert said == " ".join(text.split())
        if where in ("writer", "filler", "classifier", "tagger"):
            rows = page.locator(".web ol").first.locator(".tok")
            assert 0 < rows.count() <= 200
            joined = "".join(rows.all_text_contents()).replace(" ", "")
            assert joined == "".join(got["tokens"]).replace(" ", "")


# ---------------------------------------------------------------------------------------
# Keys, colours, phones


def test_the_page_can_be_used_by_keys(visit):
    page = visit("filler")
    settle(page)
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        name, ring = page.evaluate(
            """() => {
                const e = document.activeElement, label = e.closest("label");
                const ringed = [e, label, e.nextElementSibling].some((x) => x && getComputedStyle(x).outlineStyle !== "none");
                if (e === document.body) return ["the page itself", true];
                return [e.ariaLabel || e.id || label?.textContent || e.textContent.trim().slice(0, 30), ringed];
            }"""
        )
        if name == "the page itself" or name in reached[:1]:
            break
        reached.append(name)
        assert ring, f"{name} has the focus, and it cannot be seen"
    order = ["models", "Light or dark", "Text with [MASK]", "Tokens of the text", "Insert [MASK]"]
    assert [name for name in reached if name in order] == order
    assert any(name.startswith("Head") for name in reached)


def test_models_are_chosen_and_found_again(visit):
    page = visit("tagger")
    expect(page.locator("#models")).to_have_value("tagger")
    page.locator("#models").select_option("seer")
    expect(page.get_by_label("Choose an image")).to_be_visible()
    page.go_back()
    expect(page.get_by_label("Sentence")).to_be_visible()
    assert page.title() == "tagger · regard"


def test_light_and_dark(visit):
    page = visit("tagger", dark=True)
    paper = "() => getComputedStyle(document.documentElement).backgroundColor"
    settle(page)
    dark = page.evaluate(paper)
    page.locator("#theme").click()
    light = page.evaluate(paper)
    assert sum(map(int, re.findall(r"\d+", dark))) < 150 < 600 < sum(map(int, re.findall(r"\d+", light)))
    page.reload()
    settle(page)
    assert page.evaluate(paper) == light


@pytest.mark.parametrize(
    "where",
    ["translator", "writer", "writer/chat", "filler", "classifier", "tagger", "filler/compare", "seer", "captioner", "matcher", "drawer"],
)  # fmt: skip
def test_a_phone_has_room_for_all(visit, photo, where):
    page = visit(where, width=360, height=740, example=True)
    if where in ("seer", "captioner", "matcher"):
        page.get_by_label("Choose an image").set_input_files(photo)
    settle(page)
    for suffix in ("", "-dark"):
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        shot(page, f"phone-{where.replace('/', '-')}{suffix}")
        page.locator("#theme").click()


def test_lines_reach_from_token_to_token_at_every_width(visit):
    page = visit("tagger")
    settle(page)
    lines = page.locator(".web svg")
    reach = "svg => svg.querySelector('path').getBoundingClientRect().width / svg.getBoundingClientRect().width"
    tall = "svg => svg.getBoundingClientRect().height / svg.previousSibling.getBoundingClientRect().height"
    for width in (1_180, 360, 720):
        page.set_viewport_size({"width": width, "height": 740})
        assert lines.evaluate(reach) == pytest.approx(1, abs=0.1)  # at once, its round ends included
        assert lines.evaluate(tall) == 1


def test_a_server_with_a_key_asks_for_it_once(visit, server):
    from serve.conftest import serving

    with serving({"tagger": server.hall.served["tagger"].model}, api_key="open sesame") as client:
        page = visit(client=client, refusals=True)
        for wrong in ("wrong", "ключ"):  # which can stand in no header
            page.get_by_label("This server wants its key:").fill(wrong)
            page.keyboard.press("Enter")
        page.get_by_label("This server wants its key:").fill("open sesame")
        page.keyboard.press("Enter")
        expect(page.locator(".tagged")).to_be_visible()
        page.reload()
        expect(page.locator(".tagged")).to_be_visible()


# ---------------------------------------------------------------------------------------
# Pictures of the shipped translator


@pytest.mark.skipif(not (SHIPPED / "en-de").is_dir(), reason="the shipped translator is not there")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pictures(visit, dark):
    page = visit("en-de", dark=dark, height=1_096, example=True)
    settle(page)
    expect(page.locator(".said")).to_contain_text("Wirtschaftsraum")
    suffix = "-dark" if dark else ""
    shot(page, f"translate{suffix}")
    panel = page.locator("details", has=page.locator("summary", has_text="What it looks at"))
    if not dark:
        of_docs(page, "page-translate")
    panel.locator(".web .tok", has_text="unter").hover()
    expect(panel.locator(".readout").first).to_contain_text("unter → ▁signed")
    shot(page, f"attention{suffix}")
    if not dark:
        panel.locator("summary").hover()
        expect(panel.locator(".readout").first).to_have_text("")
        of_docs(panel, "page-attention")

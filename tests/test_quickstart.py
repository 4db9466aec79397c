"""The quickstart in small: its numbers, its flow, its page."""

import dataclasses
import json
import shlex
import shutil
from html.parser import HTMLParser

import pytest
import torch

from regard import Transformer, model, quickstart, recipe
from regard.data.store import DataDir
from regard.data.tokenizer import Tokenizer
from regard.look.alignment import Alignment
from regard.look.curves import curve
from regard.look.document import POLICY
from regard.schema import InputError

HOSTILE = "<script src=//x>&\"'</script>"


@pytest.fixture
def small(monkeypatch):
    """A model and data with which the flow takes a moment."""
    recipe = quickstart.RECIPE
    for given, wanted in (
        ("d_model = 96", "d_model = 24"), ("n_layers = 2", "n_layers = 1"), ("d_ff = 192", "d_ff = 23"),
        ("steps = 450", "steps = 3"), ("valid_every = 45", "valid_every = 2"), ("log_every = 10", "log_every = 1"),
    ):  # fmt: skip
        assert given in recipe
        recipe = recipe.replace(given, wanted)
    monkeypatch.setattr(quickstart, "RECIPE", recipe)
    for name, n in (("NUMBERS", 211), ("CHECKED", 7), ("TESTED", 13)):
        monkeypatch.setattr(quickstart, name, n)
    monkeypatch.setattr(quickstart, "SHIPPED", quickstart.Path("nowhere"))


def test_the_commands_to_try_next_are_a_shells():
    (command, _), *_ = quickstart.tries(quickstart.Path("my runs/numbers"), "en")
    assert shlex.split(command)[1:] == ["translate", "my runs/numbers", "ninety thousand two hundred and ten"]


class Page(HTMLParser):
    """The tags of a page, each closed, their attributes, the text outside of styles and scripts, and the numbers."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.open, self.scripts = [], [], "", [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":  # which has no end
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data if self.open[-1:] not in (["style"], ["script"]) else ""
        self.scripts += [data] if self.open[-1:] == ["script"] else []


def check_self_contained(text):
    """Nothing is fetched, and nothing runs but the script of the page."""
    page = Page(text)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & {*page.tags}
    kinds = [value for name, value in page.attributes if name == "type"]
    assert kinds == [*["application/json"] * (page.tags.count("script") - 1), "module"], "numbers, and one that draws"
    assert not {"src", "href", "srcset", "action", "data", "background"} & {name for name, _ in page.attributes}
    assert not any(name.startswith("on") for name, _ in page.attributes)
    text = text.replace("http://www.w3.org/2000/svg", "")  # a name
    assert not any(trace in text for trace in ("http://", "https://", "url(", "@import", "innerHTML"))
    assert ("content", POLICY) in page.attributes
    assert "prefers-color-scheme: dark" in text
    return page


# -- the data -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_no_number_is_both_learned_from_and_held_out(seed):
    drawn = quickstart.draw_numbers(seed)
    learned, checked, tested = map(set, drawn)
    assert not learned & (checked | tested)
    assert not checked & tested
    assert len(learned) <= 50_000
    assert len(tested) == len(drawn.test) == 1_000
    assert all(0 <= number < 1_000_000 for number in learned | checked | tested)
    assert drawn == quickstart.draw_numbers(seed)
    assert drawn != quickstart.draw_numbers(seed + 1)


def test_short_and_round_numbers_are_learned_and_the_test_is_of_any():
    drawn = quickstart.draw_numbers(1)
    assert {*range(100), *range(0, 1_000_000, 100_000)} <= {*drawn.train}
    assert 450_000 < sum(drawn.test) / len(drawn.test) < 550_000
    assert sum(number < 100_000 for number in drawn.test) < 150


def test_numbers_come_without_commas_and_every_language_is_checked():
    assert quickstart.number_words([1_234], "en") == ["one thousand two hundred and thirty-four"]
    with pytest.raises(InputError, match=r"^am: num2words cannot spell every number in it; "):
        quickstart.number_words([0, 1_234], "am")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "de_xx"}, "--to (de_xx): is not a language that num2words knows; known: am, ar, "),
        ({"source": "fr_BEL"}, "--from (fr_BEL): is not a language that num2words knows; did you mean fr_BE?"),
        ({"source": "de"}, "--from and --to (de): must be two languages"),
        ({"seed": -1}, "--seed (-1): must be a whole number from 0 up, below 2**63"),
        ({"target": "am"}, "am: num2words cannot spell every number in it; choose another language"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(options, message, tmp_path, small):
    with pytest.raises(InputError) as error:
        quickstart.quickstart(**options, out=tmp_path)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_place_that_is_a_file_is_refused(tmp_path, small):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"numbers-en-de: cannot be made \(Not a directory\); choose another --out"):
        quickstart.quickstart(out=tmp_path / "file")


def test_languages_with_few_words_get_fewer_subwords(tmp_path, monkeypatch, small):
    monkeypatch.setattr(quickstart, "NUMBERS", 1_009)
    numbers = quickstart.draw_numbers(1)
    recipe, data = quickstart.prepare_numbers(numbers, "vi", "id", tmp_path / "numbers")
    assert recipe.data.tokenizer.vocab_size == len(data.tokenizer) == 380
    monkeypatch.setattr(quickstart, "VOCABULARIES", (5_003, 4_001))
    with pytest.raises(InputError, match=r"vocab_size \(4001\): the text supports at most"):
        quickstart.prepare_numbers(numbers, "vi", "id", tmp_path / "others")


# -- the flow -----------------------------------------------------------------------------


def test_the_whole_flow(tmp_path, small, capsys, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda n, real=torch.set_num_threads: (asked.append(n), real(n)))
    asked, before = [], torch.get_num_threads()
    path = quickstart.quickstart(out=tmp_path, seed=3)
    assert (asked, torch.get_num_threads()) == ([1, before], before)
    out, err = capsys.readouterr()
    assert path == tmp_path / "quickstart.html"
    assert [line[:12] for line in out.splitlines() if line.startswith("exact match ")] == ["exact match "]
    assert " % of 13 numbers it never saw" in out
    assert "left out: nowhere/en-de is not there" in out
    assert str(path) in out
    assert f'translate {tmp_path / "runs" / "numbers-en-de"} "ninety thousand two hundred and ten"' in out
    assert "step   2  held-out loss " in err
    assert "  837,692 ✗ " in err

    page = check_self_contained(path.read_text(encoding="utf-8"))
    assert page.tags.count("svg") == 5, "the curve, a map of each number, and a tree"
    heads, search = map(json.loads, page.scripts[:2])
    assert [layer["name"] for layer in heads["layers"]][-3:] == [
        "decoder.0.self",
        "decoder.0.cross",
        "decoder, rollout",
    ]
    assert (search["task"], search["settings"]["beam"]) == ("translate", 4)
    assert {len(names) for names in heads["names"]} >= {len(search["source"])}, "of the same text"
    for text in ("4,271", "48,637", "837,692", "Left out: en-de is not among the models here."):
        assert text in page.text

    data = DataDir(tmp_path / "data" / "numbers-en-de" / "prepared")
    drawn = quickstart.draw_numbers(3)
    english = [data.tokenizer.decode(row) for row in data.split("train")["source"]]
    assert english == quickstart.number_words(drawn.train, "en")
    assert not {*english} & {*quickstart.number_words(drawn.test, "en")}


def test_the_model_that_ships_translates_sentences(tmp_path, small, capsys, monkeypatch):
    first = quickstart.quickstart(out=tmp_path).read_text(encoding="utf-8")
    (tmp_path / "models").mkdir()
    shutil.copytree(tmp_path / "runs" / "numbers-en-de", tmp_path / "models" / "en-de")
    for room in (model, quickstart):
        monkeypatch.setattr(room, "SHIPPED", tmp_path / "models")
    monkeypatch.setattr(quickstart, "SENTENCES", ("Two dogs.", "Four & <five>."))
    capsys.readouterr()
    path = quickstart.quickstart(out=tmp_path)  # again: what was there is replaced
    assert "Two dogs.\n    " in capsys.readouterr().out
    text = path.read_text(encoding="utf-8")
    assert text != first
    assert "<td>Four &amp; &lt;five&gt;.</td>" in text
    assert check_self_contained(text).tags.count("svg") == 7


# -- the page -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile_page():
    """Everything that the page shows, where texts and tokens are an attack."""
    tokens = Tokenizer.train([HOSTILE], recipe.Tokenizer(kind="characters"))
    torch.manual_seed(3)
    net = Transformer(recipe.model_config({"preset": "tiny_encoder_decoder"}, vocab_size=len(tokens)))
    net.head.bias = torch.nn.Parameter(torch.zeros(len(tokens)))
    net.head.bias.data[tokens.byte_ids] = -9.0
    net.head.bias.data[tokens.end] = 2.0  # it ends after a few
    inside = quickstart.look_inside(model.Model(net, "translate", tokens), {HOSTILE: HOSTILE}, of=HOSTILE)
    seen = Alignment(source=(HOSTILE,), target=(HOSTILE,), weights=torch.ones(1, 1), layer="1.cross", head=None)
    inside = inside._replace(
        maps={HOSTILE: seen}, search=dataclasses.replace(inside.search, source=(HOSTILE,) * len(inside.search.source))
    )
    return quickstart.page(
        quickstart.Results(
            source="en", target="de", numbers=quickstart.draw_numbers(1), said=[(7, [HOSTILE] * 3)], lines=[],
            seconds=11.0, tested=[(5, HOSTILE, HOSTILE, HOSTILE), (7, HOSTILE, "sieben", HOSTILE)], inside=inside,
            sentences=[(HOSTILE, HOSTILE)], inside_shipped=inside, tries=[(HOSTILE, HOSTILE)],
        )
    )  # fmt: skip


def test_everything_on_the_page_is_escaped(hostile_page):
    page = check_self_contained(hostile_page)
    assert page.tags.count("script") == 5, "two views of two models, and what draws them"
    assert "Exact match 50.0 % of 2 numbers never seen" in page.text
    assert page.text.count(HOSTILE) > 15
    assert "<script src" not in hostile_page


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 360)])
def test_a_browser_draws_it_all_on_a_screen_of_any_width(browser, hostile_page, tmp_path, scheme, width):
    (tmp_path / "quickstart.html").write_text(hostile_page, encoding="utf-8")
    page, wrong = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800}), []
    for event in ("pageerror", "dialog", "console", "requestfailed"):
        page.on(event, lambda what: wrong.append(str(what)))
    page.goto((tmp_path / "quickstart.html").as_uri())
    assert page.locator("[data-shows=attention] .att-grid button").count() == 2 * 19, "three heads of six, a rollout"
    steps = len(json.loads(Page(hostile_page).scripts[1])["steps"])
    assert page.locator("[data-shows=stepper] output").all_inner_texts() == [f"step 1 of {steps}"] * 2
    page.locator("[data-shows=stepper] [aria-label='Next step']").last.click()
    page.keyboard.press("ArrowRight")
    where = page.locator("[data-shows=stepper] output").all_inner_texts()
    assert where == [f"step {n} of {steps}" for n in (1, 3)], "keys are those of the one that has the focus"
    page.locator("[data-shows=attention] [data-view=lines]").first.click()
    assert page.locator(".att-lines").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert wrong == []
    page.close()


def test_the_curve_shows_every_loss_that_is_a_number():
    def lines(kind, *losses):
        return [{"kind": kind, "step": 10 * i, "loss": loss} for i, loss in enumerate(losses, start=1)]

    drawn = curve([*lines("train", 5.0, None, 0.05, 0.0), *lines("valid", 3.0, 0.1)])
    train, valid = (tag.split('d="M')[1].split('"')[0].split("L") for tag in drawn.split("<path")[1:])
    assert (len(train), len(valid)) == (3, 2)
    heights = [float(point.split()[1]) for point in train]
    assert heights == sorted(heights), "a lower loss is lower down"
    assert Page(curve([])).tags[0] == "svg"

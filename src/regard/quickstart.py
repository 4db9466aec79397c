"""The first thing anybody sees: a translator trained from nothing in half a minute, what it looks at, one that was
trained for longer, and a page with all of it.

The data is made on the spot: number words of two languages ("four thousand two hundred and seventy-one" and
"viertausendzweihunderteinundsiebzig"), which the library num2words spells. Everything else is the rooms at work:
:func:`regard.data.prepare.prepare`, :func:`regard.train.loop.train`, :func:`regard.load`,
:func:`regard.look.alignment.align`, :meth:`regard.Model.attention`, :meth:`regard.Model.trace`.
"""

from __future__ import annotations

import contextlib
import html
import random
import shlex
import shutil
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from rich.console import Console
from rich.text import Text

from regard.data.prepare import prepare
from regard.data.store import DataDir
from regard.files import SHIPPED, write_text
from regard.look import report, tree
from regard.look.alignment import Alignment, align, aligning_head
from regard.look.attention import Attention
from regard.look.curves import curve
from regard.look.document import document
from regard.look.trace import Trace
from regard.model import Model, load
from regard.recipe import Recipe
from regard.schema import InputError, from_dict, merge, suggest
from regard.train.loop import train
from regard.train.watch import Watch

if TYPE_CHECKING:
    from regard.train.loop import Trainer
    from regard.train.run import Run

LIMIT = 1_000_000  # numbers are below it
NUMBERS, CHECKED, TESTED = 16_000, 100, 1_000  # to learn from, to choose the weights on, to be tested on
SHOWN = (4_271, 48_637, 837_692)  # held out to watch how they get better
VOCABULARIES = (420, 380, 340, 300)  # subwords of both languages and 260 bytes and signs: the most there are words for

# What makes it quick: subwords (a number is 5 to 15 of them), packed rows, which have short and long numbers in every
# batch, and a small batch, of which there can be many. Half the numbers are short or round: see draw_numbers.
RECIPE = """
[data]
task = "translate"
[data.train]
[data.valid]

[model]
preset = "vaswani_base"
max_len = 128
[model.encoder]
d_model = 96
n_layers = 2
n_heads = 4
d_ff = 192
norm_order = "pre"
positions = { kind = "rotary" }
dropout = 0.0
embed_dropout = 0.0
[model.decoder]
d_model = 96
n_layers = 2
n_heads = 4
d_ff = 192
norm_order = "pre"
positions = { kind = "rotary" }
dropout = 0.0
embed_dropout = 0.0

[train]
steps = 450
batch_tokens = 512
packed = true
row_tokens = 64
lr = 4e-3
schedule = "cosine"
warmup = 60
betas = [0.9, 0.95]
weight_decay = 0.1
log_every = 10
valid_every = 45
checkpoint_every = 450
"""

INVERSION = "German says the ones before the tens, seven-and-thirty: there it looks ahead and back again."

HEADS = "All layers and heads at once: choose one to see it in full, as a heatmap or as lines."
STEPS = "What it wrote, and what it could have written: go through it with the arrows, or choose a box of the tree."

SHIPPED_MODEL = "en-de"
SENTENCES = (  # the last is looked at; Bahdanau et al. 2015 aligned it with its French translation
    "Good morning! Did you sleep well?",
    "The train to Munich leaves at eight o'clock.",
    "I would like a cup of coffee and a piece of cake, please.",
    "My sister, who lives in Berlin, has two small children.",
    "The Parliament will vote on the report tomorrow.",
    "The agreement on the European Economic Area was signed in August 1992.",
)
BEAM = 4  # of the search that is shown


# ---------------------------------------------------------------------------------------
# The data


class Numbers(NamedTuple):
    """Which numbers are for what; none is in two of them. Those to learn from may recur."""

    train: list[int]
    valid: list[int]
    test: list[int]


def draw_numbers(seed: int) -> Numbers:
    """Numbers to learn from, to choose the weights on and to be tested on.

    Short and round numbers are rare among a million, and who can count knows them: half of those to learn from are
    others cut short (4271 to 42) or rounded down (4271 to 4000). Those of the test are any that were not drawn.

    >>> drawn = draw_numbers(seed=1)
    >>> [len(numbers) for numbers in drawn], set(drawn.train) & {*drawn.valid, *drawn.test}
    ([16000, 103, 1000], set())
    """
    draw = random.Random(seed)
    drawn: list[int] = []
    while len(drawn) < NUMBERS:
        number, scale = draw.randrange(LIMIT), 10 ** draw.randrange(6)
        number = draw.choice((number, number, number // scale, number - number % scale))
        drawn += [number] if number not in SHOWN else []
    seen = {*drawn, *SHOWN}
    unseen = [n for n in draw.sample(range(LIMIT), 2 * (NUMBERS + CHECKED + TESTED)) if n not in seen]
    return Numbers(drawn, [*SHOWN, *unseen[:CHECKED]], unseen[CHECKED:][:TESTED])


def number_words(numbers: Sequence[int], language: str) -> list[str]:
    """Numbers in the words of a language that num2words knows, without commas.

    >>> number_words([7, 4271], "en"), number_words([4271], "de")
    (['seven', 'four thousand two hundred and seventy-one'], ['viertausendzweihunderteinundsiebzig'])
    """
    spell, _ = _num2words()
    try:
        return [spell(number, lang=language).replace(",", "") for number in numbers]
    except Exception:  # the library raises whatever comes, where one of its languages lacks a word
        raise InputError(f"{language}: num2words cannot spell every number in it; choose another language") from None


def check_language(option: str, language: str) -> None:
    """Refuse a language that num2words does not know; it would take the first letters of another for one."""
    _, known = _num2words()
    if language not in known:
        way_out = suggest(language, sorted(known))
        raise InputError(f"{option} ({language}): is not a language that num2words knows; {way_out}")


def _num2words() -> tuple[Any, Any]:
    try:
        from num2words import CONVERTER_CLASSES, num2words
    except ImportError:
        raise InputError("the quickstart needs num2words; pip install 'regard[quickstart]'") from None
    return num2words, CONVERTER_CLASSES


def prepare_numbers(numbers: Numbers, source: str, target: str, place: Path) -> tuple[Recipe, DataDir]:
    """The pairs as files, and a data directory made of them; the recipe that says so."""
    spelled = {name: (number_words(n, source), number_words(n, target)) for name, n in numbers._asdict().items()}
    shutil.rmtree(place, ignore_errors=True)  # of an earlier quickstart
    try:
        place.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{place}: cannot be made ({error.strerror}); choose another --out") from None
    for name, pairs in spelled.items():
        write_text(place / f"{name}.tsv", "".join(f"{a}\t{b}\n" for a, b in zip(*pairs, strict=True)))
    for size in VOCABULARIES:
        data = {name: {"files": [str(place / f"{name}.tsv")]} for name in ("train", "valid")}
        table = {"data": {**data, "tokenizer": {"vocab_size": size}}}
        recipe = from_dict(Recipe, merge(tomllib.loads(RECIPE), table))
        try:
            return recipe, prepare(recipe.data, place / "prepared")
        except InputError:  # two languages with few words do not have as many subwords
            if size == VOCABULARIES[-1]:
                raise
    raise AssertionError("the last size returns or raises")


# ---------------------------------------------------------------------------------------
# The flow


class Practice(Watch):
    """Tells of the training by what the model says of a few numbers, and remembers it for the page."""

    def __init__(self, *, quiet: bool = False):
        super().__init__(quiet=quiet)
        self.said: list[tuple[int, list[str]]] = []  # after so many steps, where it was something new

    def began(self, trainer: Trainer) -> None:
        n = sum(p.numel() for p in trainer.parameters.values())
        self.say(f"a Transformer of {n:,} parameters, {trainer.train.steps} steps, on one core")

    def validated(self, step: int, scores: dict[str, float], samples: list[dict[str, str]], *, best: bool) -> None:
        said = [sample["model"] for sample in samples]
        again = bool(self.said) and self.said[-1][1] == said
        self.say(f"step {step:3}  held-out loss {scores['loss']:.4f}{'  the same answers' if again else ''}")
        if again:
            return
        self.said.append((step, said))
        for number, sample in zip(SHOWN, samples, strict=True):
            self.say(f"  {number:>7,} {_mark(sample['model'], sample['reference'])} {sample['model']}")

    def finished(self, run: Run, step: int, best: dict[str, Any], seconds: float) -> None:
        pass  # the quickstart goes on


class Inside(NamedTuple):
    """What is to be seen of a translator at work."""

    maps: dict[str, Alignment]  # by what is written under them
    attention: Attention  # of all heads, over one text
    search: Trace  # for its translation


class Results(NamedTuple):
    """Everything that the page shows."""

    source: str
    target: str
    numbers: Numbers
    said: list[tuple[int, list[str]]]  # of the numbers shown, after so many steps
    lines: list[dict[str, Any]]  # of metrics.jsonl
    seconds: float  # of training
    tested: list[tuple[int, str, str, str]]  # number, its words, the right answer, the model's
    inside: Inside
    sentences: list[tuple[str, str]]  # and what the model that comes with regard makes of them
    inside_shipped: Inside | None
    tries: list[tuple[str, str]]  # commands, and what they do


def quickstart(source: str = "en", target: str = "de", *, out: str | Path = ".", seed: int = 1) -> Path:
    """Train, look, translate, and write quickstart.html into ``out``; its path.

    Data and model go to ``data/numbers-en-de`` and ``runs/numbers-en-de`` there; what an earlier quickstart left is
    replaced.
    """
    check_language("--from", source)
    check_language("--to", target)
    if source == target:
        raise InputError(f"--from and --to ({source}): must be two languages")
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed ({seed}): must be a whole number from 0 up, below 2**63")
    out, name = Path(out), f"numbers-{source}-{target}"
    run = out / "runs" / name
    screen = Console(highlight=False, soft_wrap=True)
    begun = time.perf_counter()

    _head(screen, 1, f"A translator from nothing: number words, {source} to {target}")
    numbers = draw_numbers(seed)
    screen.print(f"{len(set(numbers.train)):,} numbers to learn from, {len(numbers.test):,} others to be tested on")
    recipe, data = prepare_numbers(numbers, source, target, out / "data" / name)
    recipe = recipe.replace(train=recipe.train.replace(seed=seed))
    shutil.rmtree(run, ignore_errors=True)
    watch, at = Practice(), time.perf_counter()
    with _one_thread():
        lines = list(train(recipe, data.path, run, device="cpu", watch=watch).lines())
        seconds = time.perf_counter() - at
        model = load(run, device="cpu")
        tested = ask(model, numbers.test, source, target)
        screen.print(f"exact match {exact_match(tested)}", style="bold", end="")
        screen.print(f" of {len(tested):,} numbers it never saw, after {seconds:.0f} seconds of training")

        _head(screen, 2, "What it looks at: a row is a token that it wrote, the shade is where it looked")
        shown = dict(zip((f"{number:,}" for number in SHOWN), number_words(SHOWN, source), strict=True))
        inside = look_inside(model, shown, of=f"{SHOWN[1]:,}")
        screen.print(inside.maps[f"{SHOWN[1]:,}"])
        if (source, target) == ("en", "de"):
            screen.print(INVERSION)

    _head(screen, 3, "The translator that comes with regard, English to German")
    sentences, inside_shipped = translated()
    if not sentences:
        screen.print(f"left out: {SHIPPED / SHIPPED_MODEL} is not there")
    for english, german in sentences:
        screen.print(Text(f"{english}\n    {german}"))

    path = out / "quickstart.html"
    results = Results(
        source=source,
        target=target,
        numbers=numbers,
        said=watch.said,
        lines=lines,
        seconds=seconds,
        tested=tested,
        inside=inside,
        sentences=sentences,
        inside_shipped=inside_shipped,
        tries=tries(run, source),
    )
    write_text(path, page(results))
    _head(screen, 4, f"All of it as a page: {path}")
    screen.print(f"{time.perf_counter() - begun:.0f} seconds in all. Try next:")
    for command, what in results.tries:
        screen.print(Text(f"  {command}\n    {what}"))
    return path


def ask(model: Model, numbers: Sequence[int], source: str, target: str) -> list[tuple[int, str, str, str]]:
    """Each number, its words, the right answer and the model's."""
    read, wanted = number_words(numbers, source), number_words(numbers, target)
    said = [found.text for found in model.translate(read, beam=1, whole=True)]
    return list(zip(numbers, read, wanted, said, strict=True))


def exact_match(tested: Sequence[tuple[int, str, str, str]]) -> str:
    """The share of right answers.

    >>> exact_match([(1, "one", "eins", "eins"), (2, "two", "zwei", "drei"), (3, "three", "drei", "drei")])
    '66.7 %'
    """
    return f"{sum(wanted == said for *_, wanted, said in tested) / len(tested):.1%}".replace("%", " %")


def look_inside(model: Model, texts: dict[str, str], *, of: str) -> Inside:
    """What a translator looks at, by the names of the texts, and how it goes about one of them."""
    layer, head = aligning_head(model, [*texts.values()])
    maps = {name: align(model, text, layer=layer, head=head) for name, text in texts.items()}
    return Inside(maps, model.attention(texts[of]), model.trace(texts[of], beam=BEAM))


def translated() -> tuple[list[tuple[str, str]], Inside | None]:
    """A few sentences in German and a look inside the model that comes with regard, if it does."""
    if not (SHIPPED / SHIPPED_MODEL).is_dir():
        return [], None
    model, last = load(SHIPPED_MODEL, device="cpu"), SENTENCES[-1]
    said = [found.text for found in model.translate(SENTENCES)]
    return list(zip(SENTENCES, said, strict=True)), look_inside(model, {last: last}, of=last)


def tries(run: Path, source: str) -> list[tuple[str, str]]:
    """Commands to go on with, and what they do."""
    beside = Path(sys.executable).with_name("regard")
    inside = beside.is_relative_to(Path.cwd())
    regard = "regard" if shutil.which("regard") else str(beside.relative_to(Path.cwd()) if inside else beside)
    (words,) = number_words([90_210], source)
    regard, trained = shlex.quote(regard), shlex.quote(str(run))
    return [
        (f'{regard} translate {trained} "{words}"', "ask the model that was just trained"),
        (f'{regard} translate {SHIPPED_MODEL} "How much does this cost?"', "the one that comes with regard"),
        (
            f'{regard} look {SHIPPED_MODEL} "I read the book." --as tree',
            "what it could have written, and why it did not",
        ),
        (f"{regard} serve {SHIPPED_MODEL}", "translate and look in a browser"),
        (f"{regard} quickstart --from de --to fr", "other languages"),
        (f'{regard} walk "I am a student"', "attention in six steps, with every number"),
        (f"{regard} train --help", "train on your own text; docs/train.md shows how"),
    ]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """So small a model gains little from a second core, and where that has other work to do, loses much by waiting for
    it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _head(screen: Console, number: int, text: str) -> None:
    screen.print(Text(f"\n{number}  {text}", style="bold"))


# ---------------------------------------------------------------------------------------
# The page: one file, nothing fetched, all text escaped

STYLE = """
h2 { font-size: 1.25rem; margin: 1.5rem 0 0; }
h3 { font-size: 1rem; margin: .5rem 0 0; }
body > p { max-width: 46rem; }
figure { margin: 0; overflow-x: auto; }
figcaption { color: var(--soft); font-size: .875rem; }
table { border-collapse: collapse; justify-self: start; font-size: .875rem; }
td, th { text-align: start; vertical-align: top; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; }
th { color: var(--soft); font-size: .875rem; }
.n { text-align: end; white-space: nowrap; }
.maps { display: flex; flex-wrap: wrap; gap: 1.5rem 3rem; }
.maps figure { max-width: 100%; }
.commands td:first-child { font: .875rem/1.6 var(--mono); }
"""


def page(results: Results) -> str:
    """The whole page."""
    body = "\n".join(_sections(results))
    return document("regard quickstart", body, views=["attention", "stepper"], style=STYLE)


def _sections(results: Results) -> Iterator[str]:
    numbers, tested = results.numbers, results.tested
    inversion = f" {INVERSION}" if (results.source, results.target) == ("en", "de") else ""
    yield "<h1>regard quickstart</h1>"
    yield _paragraph(
        f"Exact match {exact_match(tested)} of {len(tested):,} numbers never seen, after {results.seconds:.0f} seconds"
        f" of training from nothing on one CPU core: number words, {results.source} to {results.target}, 0 to"
        f" {LIMIT - 1:,}, {len(set(numbers.train)):,} of them to learn from."
    )
    yield "<h2>How it learned</h2>"
    yield f"<figure>{curve(results.lines)}</figure>"
    yield _paragraph("What it wrote on the way for numbers that it did not learn from, where that was something new:")
    wanted = number_words(SHOWN, results.target)
    yield _table(
        ["step", "number", "", "written"],
        [
            [str(step) if i == 0 else "", f"{SHOWN[i]:,}", _mark(text, wanted[i]), text]
            for step, said in results.said
            for i, text in enumerate(said)
        ],
    )

    right = [row for row in tested if row[2] == row[3]]
    wrong = [row for row in tested if row[2] != row[3]]
    yield "<h2>What it was tested on</h2>"
    which = "The wrong ones, and the first of the others:" if wrong else "The first of them:"
    yield _paragraph(f"{len(right):,} right, {len(wrong):,} wrong. {which}")
    yield _table(
        ["number", "read", "", "written"],
        [[f"{number:,}", read, _mark(said, good), said] for number, read, good, said in [*wrong[:20], *right[:5]]],
    )

    yield "<h2>What it looks at</h2>"
    yield _paragraph(
        "A row is a token that it wrote, a column one that it read (▁ is the space before a word). The stronger the"
        " colour, the more of its attention was there when it wrote; the strongest of each row is framed, and the"
        f" pointer shows the share. Of the upper layers' heads, this one looks at the most different places.{inversion}"
    )
    yield from _inside(results.inside)

    yield "<h2>The translator that comes with regard</h2>"
    if results.sentences:
        yield _table(["English", "German"], results.sentences)
    else:
        yield _paragraph(f"Left out: {SHIPPED_MODEL} is not among the models here.")
    if results.inside_shipped is not None:
        yield from _inside(results.inside_shipped)

    yield "<h2>Try next</h2>"
    yield f'<div class="commands">{_table(["command", "what it does"], results.tries)}</div>'


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are text; those that are numbers stand to the right."""

    def line(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{tag}{_side(cell)}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    return f"<table>\n{line('th', heads)}\n" + "\n".join(line("td", row) for row in rows) + "\n</table>"


def _side(cell: str) -> str:
    return ' class="n"' if cell.replace(",", "").isdecimal() or cell in ("step", "number") else ""


def _mark(said: str, wanted: str) -> str:
    return "✓" if said == wanted else "✗"


def _inside(seen: Inside) -> Iterator[str]:
    """Where one head looks, all heads, and the search; the last two to be played with."""
    figures = "".join(_figure(found, what) for what, found in seen.maps.items())
    yield f'<div class="maps">{figures}</div>'
    first, *_ = seen.maps.values()
    yield "<h3>Every head</h3>"
    yield _paragraph(HEADS)
    yield _card(report.drawn(seen.attention, f"decoder.{first.layer}", first.head))
    yield "<h3>Step by step</h3>"
    yield _paragraph(STEPS)
    yield _card(tree.drawn(seen.search))


def _card(content: str) -> str:
    return f'<section class="card">{content}</section>'


def _figure(seen: Alignment, what: str) -> str:
    head = "all heads" if seen.head is None else f"head {seen.head}"
    told = html.escape(f"{what} (layer {seen.layer}, {head})")
    return f"<figure>{seen.svg()}<figcaption>{told}</figcaption></figure>"

"""What is sent and what comes back: the bodies of requests and answers, as the OpenAPI description shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Strings = Annotated[list[Annotated[str, Field()]], Field(min_length=1, max_length=256)]
Texts = str | Strings
Images = Annotated[Strings, Field(description="Files of images, as base64.")]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1, description="Of the draws.")]
Finite = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1_000)]
Share = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1)]
Some = Annotated[int, Field(ge=1, le=65_536)]

# An image of one pixel.
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="


class Body(BaseModel):
    """Of a request: what it does not know is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())
    model: Annotated[str | None, Field(description="Which of the models, where several are served.")] = None

    def options(self, *without: str) -> dict[str, Any]:
        """What was given; for the rest there are the usual defaults."""
        return self.model_dump(exclude_none=True, exclude={"model", *without})


def _example(**values: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [values]})


class Translate(Body):
    """Texts of any length to translate."""

    model_config = _example(texts=["A dog runs through the snow."], beam=4)
    texts: Texts
    align: Annotated[bool, Field(description="Also which words belong together.")] = False
    beam: Some | None = None
    n_best: Some | None = None
    length_penalty: Finite | None = None
    penalty: Literal["gnmt", "plain"] | None = None
    min_length: Annotated[int, Field(ge=0, le=65_536)] | None = None
    max_length: Some | None = None
    temperature: Finite | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    seed: Seed | None = None


class Generate(Body):
    """Prompts to go on with."""

    model_config = _example(prompts=["Once upon a time"], max_new_tokens=20, temperature=0.8, seed=1)
    prompts: Texts
    max_new_tokens: Some | None = None
    n: Some | None = None
    stop: Annotated[list[str], Field(max_length=16)] | str | None = None
    beam: Some | None = None
    length_penalty: Finite | None = None
    temperature: Finite | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    repetition_penalty: Finite | None = None
    seed: Seed | None = None


class Fill(Body):
    """Texts with gaps, each written [MASK]."""

    model_config = _example(texts=["The dog [MASK] through the snow."], top=3)
    texts: Texts
    top: Annotated[int, Field(ge=1, le=1_000)] = 5


class Classify(Body):
    """Texts, pairs of texts, or images as base64, for a label each."""

    model_config = _example(texts=["A fine day."])
    texts: str | Annotated[list[str | Annotated[list[str], Field(min_length=2, max_length=2)]], Field(
        min_length=1, max_length=256
    )] | None = None  # fmt: skip
    images: Images | None = None


class Tag(Body):
    """Sentences, for a tag for each word: strings, or lists of words."""

    model_config = _example(sentences=["Ada lives in London"])
    sentences: str | Annotated[list[str | Annotated[list[str], Field(min_length=1)]], Field(
        min_length=1, max_length=256
    )]  # fmt: skip


class Embed(Body):
    """Texts, for a vector each."""

    model_config = _example(texts=["A dog.", "A cat."])
    texts: Texts
    pool: Literal["mean", "class", "end"] | None = None
    normalise: bool = True


class Caption(Body):
    """Images as base64, for a caption each."""

    model_config = _example(images=[DOT], beam=4)
    images: Images
    beam: Some | None = None
    n_best: Some | None = None
    length_penalty: Finite | None = None
    max_length: Some | None = None
    temperature: Finite | None = None
    seed: Seed | None = None


class Match(Body):
    """Images as base64, and the texts that each of them may fit."""

    model_config = _example(images=[DOT], texts=["a dog", "a cat"], templates=["a photo of {}"])
    images: Images
    texts: Texts
    templates: Annotated[list[str], Field(min_length=1, max_length=16)] = ["{}"]


class Draw(Body):
    """Texts, for some images of each."""

    model_config = _example(texts=["an ankle boot"], n=4)
    texts: Texts
    n: Annotated[Some | None, Field(description="Left out: 8, and at a temperature of 0 the one there is.")] = None
    temperature: Finite = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Share = 1.0
    seed: Seed = 0


# ---------------------------------------------------------------------------------------
# To look inside


class LookTokens(Body):
    """A text, for its tokens as the model reads it."""

    model_config = _example(text="A dog runs through the snow.")
    text: str


class LookNext(Body):
    """A prompt, for the likeliest tokens after it."""

    model_config = _example(prompt="Once upon a", top=5, temperatures=[0.5, 1.0])
    prompt: str
    top: Annotated[int, Field(ge=1, le=1_000)] = 256
    temperatures: Annotated[list[Annotated[float, Field(gt=0.01, le=100, allow_inf_nan=False)]], Field(
        max_length=64, description="For each, what all other tokens come to together."
    )] = []  # fmt: skip


class LookImage(Body):
    """An image as base64, for the share of each patch in what the model makes of it."""

    model_config = _example(image=DOT)
    image: Annotated[str, Field(description="A file of an image, as base64.")]


class LookCaption(LookImage):
    """An image as base64, for where a captioner looked to write each word."""

    text: Annotated[str | None, Field(description="Left out: what it writes itself.")] = None
    layer: str | None = None
    head: Annotated[int, Field(ge=0)] | None = None


class LookAttention(Body):
    """A text or an image, for what one layer attends to; of one that writes, beside what it wrote."""

    model_config = _example(text="A dog runs through the snow.", layer="encoder.0.self", head=0)
    text: str | None = None
    image: Annotated[str, Field(description="A file of an image, as base64.")] | None = None
    target: Annotated[str | None, Field(description="What was written. Left out: what the model writes.")] = None
    layer: Annotated[str | None, Field(description='Such as "decoder.1.cross". Left out: a telling one.')] = None
    head: Annotated[int, Field(ge=0, description="Left out: a telling one.")] | None = None
    mean: Annotated[bool, Field(description="The mean of a layer's heads instead of one.")] = False


class LookTrace(Body):
    """A text to translate, a prompt to go on with or an image to caption, for what the search does, step by step."""

    model_config = _example(text="A dog runs through the snow.", beam=4)
    text: str | None = None
    image: Annotated[str, Field(description="A file of an image, as base64.")] | None = None
    sentence: Annotated[int, Field(ge=0, description="Which of the text's sentences, where it is translated.")] = 0
    beam: Some | None = None
    n_best: Some | None = None
    length_penalty: Finite | None = None
    max_length: Some | None = None
    temperature: Finite | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    top_p: Share | None = None
    seed: Seed | None = None


class Seen(BaseModel):
    """What is to be seen."""

    model_config = ConfigDict(protected_namespaces=(), extra="allow")
    model: str


class Answers(BaseModel):
    """An answer for each text, in their order."""

    model_config = ConfigDict(protected_namespaces=())
    model: str
    answers: list[dict[str, Any]]


class Drawings(BaseModel):
    """Some images for each text: PNG as base64, and the logarithm of the probability of each."""

    model_config = ConfigDict(protected_namespaces=())
    model: str
    answers: list[list[dict[str, Any]]]


class Vectors(BaseModel):
    """A vector for each text, in their order."""

    model_config = ConfigDict(protected_namespaces=())
    model: str
    vectors: list[list[float]]


class Problem(BaseModel):
    """Why there is no answer: one line that says what is wrong and what to do."""

    message: str
    type: str
    code: str | None = None
    param: str | None = None


class Refusal(BaseModel):
    error: Problem


# ---------------------------------------------------------------------------------------
# As OpenAI's clients have them


class OpenAI(BaseModel):
    """What both kinds have. Keys that change nothing here are let pass; those that would are refused."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())
    model: str
    max_tokens: Some | None = None
    n: Some | None = None
    stop: Annotated[list[str], Field(max_length=16)] | str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    temperature: Finite | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=0, description="Not of OpenAI's.")] | None = None
    seed: Seed | None = None

    def options(self) -> dict[str, Any]:
        known = {"n", "temperature", "top_k", "top_p", "seed"}
        return self.model_dump(exclude_none=True, include=known)


class Completion(OpenAI):
    """A prompt to go on with: a text, several, ids, or several lists of ids."""

    model_config = _example(model="tales", prompt="Once upon a time", max_tokens=20)
    prompt: Texts | Annotated[list[int], Field(min_length=1)] | Annotated[
        list[Annotated[list[int], Field(min_length=1)]], Field(min_length=1, max_length=256)
    ]  # fmt: skip


class Part(BaseModel):
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A turn."""

    model_config = ConfigDict(extra="ignore", strict=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]

    def turn(self) -> dict[str, str]:
        said = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": said}


class ChatCompletion(OpenAI):
    """A conversation, to be answered."""

    model_config = _example(model="talker", messages=[{"role": "user", "content": "Hello!"}], max_tokens=50)
    messages: Annotated[list[Message], Field(min_length=1, max_length=1_024)]
    max_completion_tokens: Some | None = None

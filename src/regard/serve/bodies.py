"""What is sent and what comes back: the bodies of requests and answers, as the OpenAPI description shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Strings = Annotated[list[Annotated[str, Field()]], Field(min_length=1, max_length=256)]
Texts = str | Strings
Seed = Annotated[int, Field(ge=0, le=2**63 - 1, description="Of the draws.")]
Finite = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1_000)]
Share = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1)]
Some = Annotated[int, Field(ge=1, le=65_536)]


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
    images: Annotated[Strings, Field(description="Files of images, as base64.")] | None = None


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


class Answers(BaseModel):
    """An answer for each text, in their order."""

    model_config = ConfigDict(protected_namespaces=())
    model: str
    answers: list[dict[str, Any]]


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
    seed: Seed | None = None

    def options(self) -> dict[str, Any]:
        known = {"n", "temperature", "top_p", "seed"}
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

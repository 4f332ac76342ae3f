"""Schemas of requests and responses."""

import functools
import itertools
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from endx_jax.data.sets.documents import CONTROL, LONGEST_ID, check_id
from endx_jax.index.filters import COMPARISONS, LONGEST_NAME

Mode = Literal["dense", "bm25", "hybrid"]
Scalar = str | int | float | bool


def _listed(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(item, int | list) for item in value):
        raise ValueError("token ids can't be read: send text, with LangChain by check_embedding_ctx_length=False")
    return [value] if isinstance(value, str) else value


def _text_of(value: Any) -> Any:
    return value["text"] if isinstance(value, dict) and "text" in value else value


SCALARS = {"anyOf": [{"type": "number"}, {"type": "string"}, {"type": "boolean"}]}
BOUNDS = {"minProperties": 1, "additionalProperties": False, "properties": dict.fromkeys(COMPARISONS, SCALARS)}
VALUES = {"anyOf": [SCALARS, {"type": "array", "items": SCALARS}, {"type": "object", **BOUNDS}]}
NAMES = {"pattern": f'^[^"\\x00]{{1,{LONGEST_NAME}}}$'}
WHERE = {"type": "object", "propertyNames": NAMES, "additionalProperties": VALUES}
TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
DOCUMENT = {"type": ["string", "object"], "required": ["text"], "properties": {"text": {"type": "string"}}}
ID = {"type": "string", "maxLength": LONGEST_ID, "pattern": rf"^(?!\.\.?$)[^{CONTROL.pattern[1:-1]}]+$"}


# JSON has one type for 8 and 8.0.
Count = Annotated[int, Field(ge=1), BeforeValidator(lambda n: int(n) if isinstance(n, float) and n % 1 == 0 else n)]


def _nullable(schema: dict[str, Any]) -> None:
    """Adds to the schema of a request that its optional fields may be null."""
    for name, field in schema["properties"].items():
        if name not in schema.get("required", ()) and {"type": "null"} not in field.get("anyOf", ()):
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}]}


def _scalar(value: Any) -> Scalar:
    if not isinstance(value, Scalar):
        raise ValueError("must be text, a number, true or false")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError("must be a whole number of 64 bits; send a larger one as text")
    return value


Value = Annotated[Any, AfterValidator(_scalar), WithJsonSchema(SCALARS)]


def _to_first_wrong(metadata: Any) -> Any:
    values = metadata.values() if isinstance(metadata, dict) else ()
    wrong = next((n for n, value in enumerate(values, start=1) if not isinstance(value, Scalar)), None)
    return dict(itertools.islice(metadata.items(), wrong)) if wrong else metadata


class Taken(BaseModel):
    """Base of requests: types are not converted, null is as absent, and unknown fields are refused."""

    # Lists have `fail_fast`, since to report the errors of millions of items would take minutes.
    model_config = ConfigDict(strict=True, extra="forbid", json_schema_extra=_nullable)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        if isinstance(fields, dict):
            given = {name: value for name, value in fields.items() if value is not None}
            declared = {name: given.pop(name) for name in cls.model_fields if name in given}
            return declared | dict([*given.items()][:1])  # to report all unknown fields could take seconds
        return fields


class EmbeddingsRequest(Taken, extra="ignore"):
    """Request of OpenAI's API, with `input_type` as an extension."""

    input: Annotated[list[str], BeforeValidator(_listed), WithJsonSchema(TEXTS)] = Field(
        fail_fast=True, description="one text or several; token ids are not supported"
    )
    model: str | None = Field(None, description="returned unchanged; see input_type")
    encoding_format: Literal["float", "base64"] = Field("float", description="base64: of little-endian float32")
    dimensions: Count | None = Field(None, description="leading dimensions to keep [all]")
    input_type: Literal["query", "document", "search_query", "search_document", "passage"] | None = Field(
        None, description="side; or end `model` by :query or :document; required if the model embeds them differently"
    )


class Embedding(BaseModel):
    """The embedding of a text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class TokenUsage(BaseModel):
    """Numbers of tokens that were encoded."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    """Response of OpenAI's API, and a note if some texts are longer than what is embedded."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: TokenUsage
    note: str | None = None


class SearchRequest(Taken):
    """A question."""

    query: str = Field(json_schema_extra={"pattern": r"\S"})
    k: Count = Field(10, description="largest number of results")
    mode: Mode | None = Field(None, description="the server's default if omitted")
    where: Annotated[dict[str, Any], WithJsonSchema(WHERE)] | None = Field(
        None, description='metadata of the documents to search, such as {"lang": ["en", "de"], "year": {"gte": 2020}}'
    )


class StoredDocument(BaseModel):
    """A document of the index."""

    id: str
    text: str
    metadata: dict[str, Scalar]
    questions: list[str] = Field([], description="known questions that it answers; left out if there are none")


class SearchResult(StoredDocument):
    """A document that was found."""

    rank: int
    score: float
    passage: int = Field(0, description="number of the passage that `text` is, from 1; left out for a whole document")
    truncated: bool = Field(description="true if text, metadata or questions were cut to the limit max_text")


class SearchResponse(BaseModel):
    """Results, best first."""

    results: list[SearchResult]
    mode: Mode
    took_ms: float = Field(description="milliseconds from the complete request to the answer, including waiting")
    documents: int = Field(description="number of documents in the index")
    note: str | None = Field(None, description="reason why the filter selects no document")


NotBlank = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class NewDocument(Taken):
    """A document to add."""

    text: NotBlank
    id: Annotated[str, AfterValidator(functools.partial(check_id, where="the id")), WithJsonSchema(ID)] | None = Field(
        None, description="1 to 512 bytes without control characters, not . or ..; generated if omitted"
    )
    metadata: Annotated[dict[str, Value], BeforeValidator(_to_first_wrong)] = {}
    questions: list[NotBlank] = Field([], fail_fast=True, description="known questions")
    split: bool = Field(
        False,
        description="true to split a long text into passages, each embedded after the title of the metadata; a "
        "search finds the document by its best passage",
    )


class RerankRequest(Taken, extra="ignore"):
    """Question and documents to rank, as Cohere's and Jina's clients send them."""

    query: str
    documents: list[Annotated[str, BeforeValidator(_text_of), WithJsonSchema(DOCUMENT)]] = Field(
        fail_fast=True, description="texts, or objects with `text`", json_schema_extra={"minItems": 1}
    )
    top_n: Count | None = Field(None, description="largest number of results [all]")
    return_documents: bool = Field(False, description="true to return the texts too")
    model: str | None = Field(None, description="returned unchanged; the server has one model")


class RerankResult(BaseModel):
    """Score of a document."""

    index: int = Field(description="position in the request")
    relevance_score: float
    document: dict[Literal["text"], str] | None = None


class RerankResponse(BaseModel):
    """Results, best first, and a note if some documents are longer than what is read."""

    model: str
    results: list[RerankResult]
    usage: TokenUsage
    note: str | None = None


class DocumentsResponse(BaseModel):
    """Ids of the documents that were added, in order, and a note if some are longer than what is embedded."""

    ids: list[str]
    note: str | None = None


class DeletedResponse(BaseModel):
    """The id of the document that was deleted."""

    deleted: str


class ErrorDetails(BaseModel):
    """Description of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """Body of every response with status 400 or above."""

    error: ErrorDetails

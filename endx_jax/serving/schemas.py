"""Schemas of requests, and of error responses."""

import functools
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

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


def _scalar(value: Any) -> Scalar:
    if not isinstance(value, Scalar):
        raise ValueError("must be text, a number, true or false")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError("must be a whole number of 64 bits; send a larger one as text")
    return value


Value = Annotated[Any, AfterValidator(_scalar), WithJsonSchema(SCALARS)]


class RequestModel(BaseModel):
    """Base of requests: types are not converted, optional fields may be null, and unknown fields are refused."""

    # Lists have `fail_fast`, since to report the errors of millions of items would take minutes.
    model_config = ConfigDict(strict=True, extra="forbid")


class EmbeddingsRequest(RequestModel, extra="ignore"):
    """Request of OpenAI's API, with `input_type` as an extension."""

    input: Annotated[list[str], BeforeValidator(_listed), WithJsonSchema(TEXTS)] = Field(
        min_length=1, fail_fast=True, description="one text or several; token ids are not supported"
    )
    model: str | None = Field(None, description="returned unchanged; see input_type")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="float if omitted; base64: of little-endian float32"
    )
    dimensions: Count | None = Field(None, description="leading dimensions to keep [all]")
    input_type: Literal["query", "document", "search_query", "search_document", "passage"] | None = Field(
        None, description="side; or end `model` by :query or :document; required if the model embeds them differently"
    )


class SearchRequest(RequestModel):
    """A question."""

    query: str = Field(json_schema_extra={"pattern": r"\S"})
    k: Count | None = Field(None, description="largest number of results [10, or the server's limit]")
    mode: Mode | None = Field(None, description="the server's default if omitted")
    where: Annotated[dict[str, Any], WithJsonSchema(WHERE)] | None = Field(
        None, description='metadata of the documents to search, such as {"lang": ["en", "de"], "year": {"gte": 2020}}'
    )


NotBlank = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class NewDocument(RequestModel):
    """A document to add."""

    text: NotBlank
    id: Annotated[str, AfterValidator(functools.partial(check_id, where="the id")), WithJsonSchema(ID)] | None = Field(
        None, description="1 to 512 bytes without control characters, not . or ..; generated if omitted"
    )
    metadata: dict[str, Value] | None = None
    questions: list[NotBlank] | None = Field(None, fail_fast=True, description="known questions")
    split: bool | None = Field(
        None,
        description="true to split a long text into passages, each embedded after the title of the metadata, and "
        "to leave out images in it and words of over 800 ASCII characters; a search finds the document by its best "
        "passage",
    )


class DocumentsRequest(RequestModel):
    """Documents to add."""

    documents: list[NewDocument] = Field(min_length=1, fail_fast=True)


class RerankRequest(RequestModel, extra="ignore"):
    """Question and documents to rank, as Cohere's and Jina's clients send them."""

    query: str
    documents: list[Annotated[str, BeforeValidator(_text_of), WithJsonSchema(DOCUMENT)]] = Field(
        min_length=1, fail_fast=True, description="texts, or objects with `text`"
    )
    top_n: Count | None = Field(None, description="largest number of results [all]")
    return_documents: bool | None = Field(None, description="true to return the texts too")
    model: str | None = Field(None, description="returned unchanged; the server has one model")


class ErrorDetails(BaseModel):
    """Description of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """Body of every response with status 400 or above."""

    error: ErrorDetails

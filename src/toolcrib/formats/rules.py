"""What each provider takes as the schema of a tool's arguments, as its documentation of November 2026 says.

A provider refuses a whole request for one schema that it does not take, so whatever is not documented to be accepted
is rewritten, or said in the description instead.

Sources: OpenAI, "Structured outputs, supported schemas" and the refusals of its API for functions; Anthropic, "Define
tools" and "Structured outputs, JSON Schema limitations and schema complexity limits"; Google, the reference of
`FunctionDeclaration`, `Schema` and of the JSON Schema keywords that Gemini reads.
"""

import re
from dataclasses import dataclass
from typing import Final

_COMMON: Final = frozenset(
    {"type", "title", "description", "enum", "properties", "required", "items", "anyOf", "additionalProperties"}
)

_REFERENCES: Final = frozenset({"$ref", "$defs"})

_NUMBERS: Final = frozenset({"minimum", "maximum"})

_ARRAYS: Final = frozenset({"minItems", "maxItems"})

_STRICT_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRules:
    """What may stand in a schema. What may not is rewritten or left out."""

    keywords: frozenset[str] | None = None
    """The keywords that are read; None means all. The others go into the description."""
    formats: frozenset[str] | None = None
    """The values of `format` that are read; None means any."""
    recursion: bool = True
    """References of a schema to itself."""
    all_of: bool = True
    """`allOf` below the top; nobody takes it at the top."""
    one_of: bool = True
    const: bool = True
    types: bool = True
    """A list of types; otherwise `nullable` and `anyOf` say it."""
    patterns: bool = True
    """Regular expressions that look ahead or behind."""
    enums: tuple[type, ...] | None = None
    """What the values of an enum may be; None means anything."""
    array_items: bool = False
    """Every array says what its items are."""
    capitals: bool = False
    """Types are written in capitals."""
    key: re.Pattern[str] | None = None
    """What the names of the arguments look like; others are renamed, and named back by `AdaptedSchema.restore`."""
    strict: bool = False
    """The model is held to the schema: closed objects, every part typed."""
    all_required: bool = False
    """In strict mode, what is optional is required and may be null."""
    min_items: int | None = None
    """The largest `minItems` that is read; None means any."""
    max_properties: int = 5_000
    """Properties of a strict schema."""
    max_depth: int = 10
    """Levels of objects in a strict schema."""
    max_enum: int = 1_000
    """Values of all the enums of a strict schema."""
    max_text: int = 120_000
    """Characters of the names and the enum values of a strict schema."""
    max_optional: int | None = None
    """Optional arguments that the strict tools of one request may have in all; None means any number."""
    max_unions: int | None = None
    """Arguments of several types that the strict tools of one request may have in all."""
    max_tools: int | None = None
    """Strict tools a request."""
    otherwise: "SchemaRules | None" = None
    """The rules for a schema that cannot be strict."""


OPENAI: Final = SchemaRules(all_of=False, array_items=True)
"""Functions of Chat Completions and of Responses, without strict mode."""

OPENAI_STRICT: Final = SchemaRules(
    keywords=_COMMON
    | _REFERENCES
    | _NUMBERS
    | _ARRAYS
    | {"const", "pattern", "format", "multipleOf", "exclusiveMinimum", "exclusiveMaximum"},
    formats=_STRICT_FORMATS,
    all_of=False,
    one_of=False,
    patterns=False,
    array_items=True,
    strict=True,
    all_required=True,
    otherwise=OPENAI,
)
"""The same with `strict: true`."""

ANTHROPIC: Final = SchemaRules(key=re.compile(r"[A-Za-z0-9_.-]{1,64}"))
"""Tools of the Messages API: JSON Schema 2020-12, with a few names and places that it refuses."""

ANTHROPIC_STRICT: Final = SchemaRules(
    keywords=_COMMON | {"const", "format", "minItems", "default"},
    formats=_STRICT_FORMATS | {"uri"},
    recursion=False,
    all_of=False,
    one_of=False,
    enums=(str, int, float, bool, type(None)),
    key=re.compile(r"[A-Za-z0-9_.-]{1,64}"),
    strict=True,
    min_items=1,
    max_optional=24,
    max_unions=16,
    max_tools=20,
    otherwise=ANTHROPIC,
)
"""The same with `strict: true`; bounds and patterns are not read there."""

GEMINI: Final = SchemaRules(
    keywords=_COMMON | _NUMBERS | _ARRAYS | {"format", "prefixItems", "oneOf"},
    recursion=False,
    all_of=False,
    const=False,
    enums=(str, int, float),
)
"""Function declarations with `parametersJsonSchema`."""

GEMINI_OPENAPI: Final = SchemaRules(
    keywords=(_COMMON - {"additionalProperties"})
    | _NUMBERS
    | _ARRAYS
    | {"format", "nullable", "pattern", "default", "example", "minLength", "maxLength", "minProperties"}
    | {"maxProperties"},
    recursion=False,
    all_of=False,
    one_of=False,
    const=False,
    types=False,
    enums=(str,),
    array_items=True,
    capitals=True,
    key=re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}"),
)
"""Function declarations with `parameters`: a subset of the schemas of OpenAPI 3.0."""

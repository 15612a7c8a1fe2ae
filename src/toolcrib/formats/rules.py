"""The JSON Schema that each provider accepts for a tool's arguments, as documented in November 2026.

A provider refuses a whole request because of one schema that it does not accept. Whatever is not documented as
accepted is therefore rewritten, or moved to the description.

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
    """What a schema may contain. Everything else is rewritten or left out."""

    keywords: frozenset[str] | None = None
    """Accepted keywords; None means all. Others are moved to the description."""
    formats: frozenset[str] | None = None
    """Accepted values of `format`; None means any."""
    recursion: bool = True
    """Whether a schema may refer to itself."""
    all_of: bool = True
    """`allOf` below the top; no provider accepts it at the top."""
    one_of: bool = True
    const: bool = True
    types: bool = True
    """Lists of types; otherwise `nullable` and `anyOf` are used."""
    patterns: bool = True
    """Regular expressions with lookaround."""
    enums: tuple[type, ...] | None = None
    """Types of enum values; None means any."""
    array_items: bool = False
    """Every array needs `items`."""
    capitals: bool = False
    """Types are in capitals."""
    key: re.Pattern[str] | None = None
    """Pattern of argument names; others are renamed, and restored by `AdaptedSchema.restore`."""
    strict: bool = False
    """The model is constrained by the schema: objects are closed, and every part has a type."""
    all_required: bool = False
    """In strict mode, optional arguments are required and nullable."""
    min_items: int | None = None
    """Largest accepted `minItems`; None means any."""
    max_properties: int = 5_000
    """Properties of a strict schema."""
    max_depth: int = 10
    """Levels of objects in a strict schema."""
    max_enum: int = 1_000
    """Values of all the enums of a strict schema."""
    max_text: int = 120_000
    """Characters of the names and the enum values of a strict schema."""
    max_optional: int | None = None
    """Optional arguments of all strict tools in one request; None means any number."""
    max_unions: int | None = None
    """Arguments of several types of all strict tools in one request."""
    max_tools: int | None = None
    """Strict tools per request."""
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
"""Tools of the Messages API: JSON Schema 2020-12, except a few names and positions."""
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
"""The same with `strict: true`, where bounds and patterns are not supported."""
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

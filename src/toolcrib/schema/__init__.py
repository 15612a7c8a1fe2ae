"""JSON Schema: checking arguments, one-line signatures, ready-made examples."""

from toolcrib.schema.example import example
from toolcrib.schema.signature import ParameterInfo, parameters, signature
from toolcrib.schema.validate import Schema

__all__ = ["ParameterInfo", "Schema", "example", "parameters", "signature"]

"""JSON Schema: checking arguments, one-line signatures, ready-made examples."""

from toolcrib.schema.check import Schema
from toolcrib.schema.describe import Parameter, parameters, signature
from toolcrib.schema.example import example

__all__ = ["Parameter", "Schema", "example", "parameters", "signature"]

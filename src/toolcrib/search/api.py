"""What other packages use of the search, which is loaded with numpy when they first use a part of it.

They write `from toolcrib import search` and `search.Index`, also in annotations, which are not evaluated.
"""

from toolcrib.search.embedding import CosineScale, checked_vectors, packed_rows, tool_text, unpacked_rows
from toolcrib.search.engine import listing, prepare, request_texts, search
from toolcrib.search.features import SemanticModel, default_semantic_model
from toolcrib.search.grouping import group_same_tools
from toolcrib.search.index import Index, empty_index
from toolcrib.search.past import PastRequests, request_terms, request_words
from toolcrib.search.profile import KIND_GROUPS, MAX_READ, Profile, make_profile, telling_words
from toolcrib.search.vectors import Floats, QuantizedRows, Vectors, default_table, quantize

__all__ = [
    "KIND_GROUPS",
    "MAX_READ",
    "CosineScale",
    "Floats",
    "Index",
    "PastRequests",
    "Profile",
    "QuantizedRows",
    "SemanticModel",
    "Vectors",
    "checked_vectors",
    "default_semantic_model",
    "default_table",
    "empty_index",
    "group_same_tools",
    "listing",
    "make_profile",
    "packed_rows",
    "prepare",
    "quantize",
    "request_terms",
    "request_texts",
    "request_words",
    "search",
    "telling_words",
    "tool_text",
    "unpacked_rows",
]

"""The prose of the project is plain English: words that read as translated or archaic do not come back."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS = (
    *("he", "his", "him", "himself", "whom", "whoever", "whomever", "nobody", "somebody", "anew", "thereof", "wherein"),
    *("mend", "mends", "mended", "mending", "told", "tells", "heard", "hears", "stands", "stood", "one's", "save for"),
    *("thereby", "herein", "forthwith", "albeit", "lest", "betimes", "ere"),
)
ODD = re.compile(rf"\b(?:{'|'.join(map(re.escape, WORDS))})\b", re.IGNORECASE)
NAMES = re.compile(rf"(?:test_|_)(?:{'|'.join(word for word in WORDS if word.isalpha())})(?:_|$)")
DEFINED = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
FENCED = re.compile(r"^ *```.*?^ *```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and comments of a Python file, with their lines; other strings are data."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def odd(text: str) -> list[str]:
    return [found.group() for found in ODD.finditer(FENCED.sub("", text))]


def test_the_source_speaks_plain_english() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, text in prose_of(path)
        for word in odd(text)
    ]
    assert not found, "\n".join(found)


def test_tests_examples_and_benchmarks_speak_plain_english() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for folder in ("tests", "examples", "bench", "training")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not any(
            part == "out" or part.startswith(".venv") for part in path.relative_to(ROOT).parts
        )  # made by benchmarks
        for line, text in prose_of(path)
        for word in odd(text)
    ]
    assert not found, "\n".join(found)


def test_the_documentation_speaks_plain_english() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")]
    found = [f"{page.relative_to(ROOT)}: {word}" for page in pages for word in odd(page.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


def test_the_names_of_tests_are_plain_english() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in DEFINED.findall(path.read_text(encoding="utf-8"))
        if NAMES.search(name)
    ]
    assert not found, "\n".join(found)

"""Files of `NAME=value` lines, as `envFile` names them. Nothing in them is expanded."""

import re

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(.*?)\s*")
_QUOTED = re.compile(r"""(["'])(.*)\1\s*(?:#.*)?""")


def parse(text: str) -> dict[str, str]:
    r"""The variables of the text; lines that are none are passed over.

    >>> parse('# keys\nexport A=1\nB = "two words" # why\nC=three # not\nD=')
    {'A': '1', 'B': 'two words', 'C': 'three', 'D': ''}
    """
    lines = (_LINE.fullmatch(line) for line in text.splitlines())
    return {line[1]: _value(line[2]) for line in lines if line}


def _value(written: str) -> str:
    quoted = _QUOTED.fullmatch(written)
    return quoted[2] if quoted else re.sub(r"(^|\s+)#.*$", "", written)

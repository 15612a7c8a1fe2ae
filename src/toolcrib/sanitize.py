"""Make text that others wrote safe for people, models and logs.

Errors, log messages, standard error, status reasons and questions of tools and servers all pass `one_line` or
`paragraphs`, which measure, cut, clean and mask, in this order. Every step takes time linear in the length, and no
pattern sees a text before it is cut. Knows nothing of tools or servers.

Cleaning removes what people cannot see, since such characters can carry instructions past a reviewer: control
characters and terminal escapes, zero-width and bidirectional formatting characters, tag characters (U+E0000 to
U+E007F), and variation selectors, which can encode bytes. Those that a script or an emoji needs stay where they have
an effect: joiners and one variation selector after a character that is not ASCII.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

MAX_ECHO: Final = 80
"""Characters of what a caller sent that an error repeats."""
MAX_LISTED: Final = 10
"""Names that a message lists."""
MAX_NAME: Final = 200
"""Characters of a server's name, version or title."""
MAX_REASON: Final = 300
"""Characters of a reason in a status."""
MAX_ERROR: Final = 1_000
"""Characters of an error's message, a line of a log, or a progress message."""
MAX_RECORD: Final = 20_000
"""Characters of a record in a log file, with its traceback."""
MAX_QUESTION: Final = 10_000
"""Characters of a question to a person."""
MAX_INSTRUCTIONS: Final = 20_000
"""Characters of a server's instructions, or of its description of itself."""

MASK: Final = "***"
"""Replaces a secret."""
_MARGIN: Final = 1_024
"""Characters that are read and not shown: without them, a secret at the end of what is shown may not be recognized."""
_READ_FACTOR: Final = 4
_MIN_READ: Final = 8_192
"""Characters that are shown at most, before blanks and escapes are removed from them."""

_ESCAPE: Final = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"
"""A terminal's escape sequence: CSI, OSC, or two characters (ECMA-48)."""
_CONTROLS: Final = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
_FORMATS: Final = "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
_MORE_FORMATS: Final = "\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
_AFTER_ASCII: Final = "(?:(?<=[\x00-\x7f])|^)[\u200c\u200d\ufe00-\ufe0f]+"
_REPEATED: Final = "(?<=[\u200c\u200d])[\u200c\u200d\ufe00-\ufe0f]+|(?<=[\ufe00-\ufe0f])[\u200c\ufe00-\ufe0f]+"
_INVISIBLE: Final = re.compile(f"{_ESCAPE}|[{_CONTROLS}{_FORMATS}{_MORE_FORMATS}]|{_AFTER_ASCII}|{_REPEATED}")
_JOINERS: Final = re.compile("[\u200c\u200d\ufe00-\ufe0f]")
_PASSES: Final = 4
"""How often to remove what removing left behind, such as a joiner that now follows another character."""
_SURROGATE: Final = re.compile("[\\ud800-\\udfff]")
_LINE_END: Final = re.compile("\r\n?|[\v\f\x85\u2028\u2029]")

# What comes before a value is matched from the sensitive name on, not from the start of its word, and a part that can
# be long ends where no other match can have begun. Otherwise the time would grow with the square of a word's length.
# The group of an alternative ends where the secret begins.
_SECRETS: Final = re.compile(
    r"""
    (?<=://)[^\s/?#"'<>]+(?=@)                                        # the user and password of a URL
    | (?P<query>[?&](?:key|sig|signature|code|auth)=)[^\s"'&#]{3,}+
    | (?:passwords?|passwd|pwd|passphrase|secret|token|credentials?|(?:api|access|account|private|secret|auth)[_-]?key)
      (?:
        (?P<quoted>["']?\s?[=:]\s?[bru]?["'])(?:(?<=")(?:[^"\\]|\\.){3,}+(?=")|(?<=')(?:[^'\\]|\\.){3,}+(?='))
        | (?P<escaped>\\+["']\s?:\s?\\+["'])[^"'\\]{3,}+              # JSON within a JSON string
        | (?P<assigned>\\*["']?(?:\s?=\s?|:\s*+(?=[bru]?\\*["']))[bru]?\\*["']?)[^\s"'&,;\\]{3,}+
        | (?P<header>:[ \t]++)(?=[^\s"'&,;\d]{0,63}\d)[^\s"'&,;]{6,}+ # not "Unexpected token: end of file"
      )
    | (?P<scheme>\b(?:bearer|basic)\s++)
      (?=[A-Za-z0-9._~+/-]{0,256}(?:\d|[._~+/-]\w|(?-i:[a-z][A-Z])))  # not "basic authentication"
      [A-Za-z0-9._~+/-]{8,}+=*+
    | (?P<cookie>\bcookie:\s?)[^\s=;,]{1,128}=[^\s;,]*+(?:;[ ]?[^\s=;,]{1,128}=[^\s;,]*+)*+
    | -----BEGIN[ ][A-Z0-9 ]{0,40}PRIVATE[ ]KEY(?:[ ]BLOCK)?-----.*?(?:-----END[ ][A-Z0-9 ]{0,50}-----|\Z)
    | \b(?:sk-|[sr]k_(?:live|test)_|gh[a-z]_|github_pat_|glpat-|tcrib_|xox[a-z]-|whsec_)[\w.-]{8,}+
    | \b(?-i:AKIA|ASIA|AIza|ya29\.)[\w.-]{8,}+
    | \b(?-i:eyJ)[\w-]{13,}+[\w.-]*+                                  # a JSON web token
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_URL_USER: Final = re.compile(r"(?<=://)[^\s/?#\"'<>]*@")
_URL: Final = re.compile(r"(://[^\s?#]*+)(?:[?#]\S*+)?")

Span = tuple[int, int]


class SecretValues:
    """Values that no text may show. Finds them in time linear in the length of the text, however long they are."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        given = {value for value in values if value}
        # A text is searched after it became one line, so a value of several lines is looked for as one line too.
        self._values = sorted(given | {_spaced(visible(value)) for value in given} - {""})
        self.longest = max(map(len, self._values), default=0)

    def adding(self, values: Iterable[str]) -> "SecretValues":
        """These values and more."""
        return SecretValues((*self._values, *values))

    def mask(self, text: str) -> str:
        """The whole text with each value replaced.

        >>> SecretValues(["hunter2", "hunter22"]).mask("not hunter22")
        'not ***'
        """
        return _replaced(text, sorted(self.spans(text)))

    def spans(self, text: str) -> Iterator[Span]:
        """Yield where the values are, in no order."""
        for value in self._values:
            start = text.find(value)
            while start >= 0:
                yield start, (end := start + len(value))
                start = text.find(value, end)


NO_VALUES: Final = SecretValues()


def one_line(text: str, limit: int = MAX_ERROR, values: SecretValues = NO_VALUES, *, bare_urls: bool = False) -> str:
    """The text on one line of at most `limit` characters, without the values and without what looks like a secret.

    With `bare_urls`, URLs lose their users and queries. Only the beginning of a long text is read; where it is cut
    within a secret, nothing of the secret is shown.

    >>> one_line("\\x1b[31mError:\\x1b[0m  no\\tsuch\\nfile"), one_line("token=hunter2 " + "x" * 9, 12)
    ('Error: no such file', 'token=*** x…')
    """
    return _sanitized(text, limit, values, _spaced, bare_urls=bare_urls)


def paragraphs(text: str, limit: int, values: SecretValues = NO_VALUES, *, keep_examples: bool = False) -> str:
    """Like `one_line`, with the text's lines as they are.

    With `keep_examples`, what merely looks like a secret stays: prose for a model or a person explains with examples.

    >>> paragraphs("Use it.\\r\\n\\r\\n  Then\\x07 stop.", 20)
    'Use it.\\n\\n  Then sto…'
    """
    return _sanitized(text, limit, values, _with_line_ends, patterns=not keep_examples)


def mask_secrets(text: str) -> str:
    """The whole text without what looks like a secret: users of URLs, tokens, private keys, and values of such names.

    The text of a third party has no bound: use `one_line` for it.

    >>> mask_secrets("no route to postgres://ann:pw@db/main, password=hunter2, Authorization: Bearer abcdefgh12")
    'no route to postgres://***@db/main, password=***, Authorization: Bearer ***'
    >>> mask_secrets("Basic authentication is required")
    'Basic authentication is required'
    """
    return _replaced(text, list(_secret_spans(text)))


def visible(text: str) -> str:
    """The text without what people cannot see; the same object if nothing has to go.

    >>> visible("Adds\\u200b two\\x1b[31m numbers\\U000e0041"), visible("👩\\u200d💻")
    ('Adds two numbers', '👩\\u200d💻')
    """
    if text.isascii() and text.isprintable():
        return text
    for _ in range(_PASSES):
        if not _INVISIBLE.search(text):
            return text
        text = _INVISIBLE.sub("", text)
    return _INVISIBLE.sub("", _JOINERS.sub("", text))


def well_formed(text: str) -> str:
    """The text with each unpaired surrogate, which nothing can encode, as a replacement character.

    >>> well_formed("half \\ud83d")
    'half �'
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def shorten(text: str, limit: int) -> str:
    """Truncate the text to `limit` characters.

    >>> shorten("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= limit else text[: limit - 1] + "…"


def echo(value: object) -> str:
    """What a caller sent, quoted and truncated, for an error to repeat.

    >>> echo("serach"), echo("x" * 200)[-3:]
    ("'serach'", "x…'")
    """
    return repr(shorten(str(value), MAX_ECHO))


def quote(text: str) -> str:
    """A name in double quotes, truncated, with characters that cannot be printed replaced.

    >>> print(quote("git" + chr(7)))
    "git�"
    """
    return '"' + "".join(char if char.isprintable() else "\ufffd" for char in shorten(text, MAX_ECHO)) + '"'


def listing(names: Iterable[str], most: int = MAX_LISTED) -> str:
    """The names for a message, or the first of them and how many more there are.

    >>> listing(["git", "time"]), listing(["git", "time", "fetch"], 2)
    ('git, time', 'git, time and 1 more')
    """
    every = [*names]
    more = len(every) - most
    return ", ".join(every[:most]) + (f" and {more} more" if more > 0 else "")


def _sanitized(
    text: str,
    limit: int,
    values: SecretValues,
    arrange: Callable[[str], str],
    *,
    patterns: bool = True,
    bare_urls: bool = False,
) -> str:
    read, margin = max(_MIN_READ, _READ_FACTOR * limit), max(_MARGIN, values.longest)
    clean = _cleaned(text[: read + margin], arrange, bare_urls=bare_urls)
    spans = sorted([*values.spans(clean), *(_secret_spans(clean) if patterns else ())])
    if len(text) <= read + margin:
        return shorten(_replaced(clean, spans), limit)
    # A secret that begins in what is shown is whole, or at least long enough to be recognized, with the margin.
    shown = len(_cleaned(text[:read], arrange, bare_urls=bare_urls))
    return shorten(_replaced(clean, spans, shown) + "…", limit)


def _cleaned(text: str, arrange: Callable[[str], str], *, bare_urls: bool) -> str:
    # Arranged last: line ends and tabs separate words until then.
    clean = arrange(visible(well_formed(text)))
    return _URL.sub(r"\1", _URL_USER.sub("", clean)) if bare_urls else clean


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _with_line_ends(text: str) -> str:
    return _LINE_END.sub("\n", text).strip()


def _secret_spans(text: str) -> Iterator[Span]:
    for found in _SECRETS.finditer(text):
        yield found.end(found.lastgroup) if found.lastgroup else found.start(), found.end()


def _replaced(text: str, spans: Iterable[Span], end: int | None = None) -> str:
    """The text up to `end` with each of the sorted spans masked; one that begins before the end is masked whole."""
    end = len(text) if end is None else end
    parts, done = list[str](), 0
    for start, stop in spans:
        if start >= end:
            break
        if start >= done:
            parts += text[done:start], MASK
        done = max(done, stop)
    return "".join([*parts, text[done:end]])

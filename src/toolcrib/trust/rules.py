"""The rules of the lint: what a finding of each means, and what to do about it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final, Literal, NamedTuple

Severity = Literal["hard", "soft"]
"""A hard finding has hardly any honest explanation; a soft one is worth a look."""


class LintRule(NamedTuple):
    """What a finding of a rule means."""

    why: str
    advice: str


RULES: Final[Mapping[str, LintRule]] = {
    "secret-access": LintRule("asks the model to fetch secrets of the user", "Do not use this server, and report it."),
    "exfiltration": LintRule("asks the model to pass on what is private", "Do not use this server, and report it."),
    "concealment": LintRule("asks the model to hide something from the user", "Do not use this server, and report it."),
    "override": LintRule("asks the model to disregard its instructions", "Do not use this server, and report it."),
    "tampering": LintRule("asks the model to change calls of other tools", "Do not use this server, and report it."),
    "takeover": LintRule("puts itself above other tools or the user", "Compare it with what the tool is for."),
    "command": LintRule("has a command that loads or runs foreign code", "Do not let a model run it."),
    "role-marker": LintRule("poses as a message of the system", "Do not use this server, and report it."),
    "image-leak": LintRule("has an image whose address carries data away", "Do not use this server, and report it."),
    "encoded-instruction": LintRule("has encoded instructions", "Do not use this server, and report it."),
    "encoded-text": LintRule("has encoded sentences", "Decode them, and see whether a model should read them."),
    "destructive": LintRule(
        "deletes things on an occasion of its own", "Read the text, and see whether the tool needs it."
    ),
    "weaken": LintRule("lowers the protection of the machine", "Read the text, and see whether the tool needs it."),
    "consent": LintRule("takes consent for granted", "Read the text, and see whether the tool needs it."),
    "to-model": LintRule(
        "addresses the model behind the reader's back", "Read the text, and see whether the tool needs it."
    ),
    "obedience": LintRule("asks for blind obedience", "Read the text, and see whether the tool needs it."),
    "mode": LintRule("gives the model another role", "Read the text, and see whether the tool needs it."),
    "prompt-leak": LintRule(
        "asks for the instructions of the model", "Read the text, and see whether the tool needs it."
    ),
    "bias": LintRule("recommends for someone else's benefit", "Read the text, and see whether the tool needs it."),
    "falsify": LintRule("falsifies what is reported", "Read the text, and see whether the tool needs it."),
    "money": LintRule("diverts money", "Read the text, and see whether the tool needs it."),
    "local-data": LintRule("takes data of the machine", "Read the text, and see whether the tool needs it."),
    "asks-secret": LintRule("asks for secrets of the user", "Read the text, and see whether the tool needs it."),
    "injection": LintRule("has a payload for another interpreter", "Read the text, and see whether the tool needs it."),
    "replaced": LintRule("declares other tools replaced", "Read the text, and see whether the tool needs it."),
    "exhaust": LintRule("wastes calls", "Read the text, and see whether the tool needs it."),
    "quiet-change": LintRule("changes something unseen", "Read the text, and see whether the tool needs it."),
    "previous-results": LintRule(
        "wants what other tools returned", "Read the text, and see whether the tool needs it."
    ),
    "personal-data": LintRule("passes on personal data", "Read the text, and see whether the tool needs it."),
    "remote-orders": LintRule("loads orders from elsewhere", "Read the text, and see whether the tool needs it."),
    "order-in-passing": LintRule(
        "changes the calls of others in passing", "Read the text, and see whether the tool needs it."
    ),
    "several-signs": LintRule("has several signs of misleading the model", "Read the text before a model does."),
    "emphasis-tag": LintRule("marks parts of its text with tags for the model", "Read what is between the tags."),
    "padding": LintRule("has text far behind a gap, where people do not look", "Read what follows the gap."),
    "pretext": LintRule("orders actions on files when other tools are used", "Do not use this server, and report it."),
    "order-elsewhere": LintRule("says what to do when other tools are used", "See whether that is its business."),
    "precedence": LintRule("wants to be called before other tools", "See whether that is needed."),
    "preference": LintRule("praises itself over other tools", "Compare it with the others yourself."),
    "invisible": LintRule(
        "has characters that people cannot see; they were removed", "Ask its author what they are for."
    ),
    "disguised": LintRule("mixes letters that look alike", "Compare its spelling with what you expect."),
    "hidden-markup": LintRule("has text that a browser would not show", "Read what is hidden."),
    "look-alike": LintRule("looks like the name of another server's tool", "Make sure which server you mean."),
    "other-server": LintRule("gives orders about another server's tool", "Remove one of the two servers."),
    "mentions-server": LintRule("names another server's tool", "See what it says about it."),
    "parameter-order": LintRule("has a parameter whose name asks for private data", "Do not use this tool."),
    "private-parameter": LintRule("has a parameter for private data of the conversation", "See what the data is for."),
    "secret-parameter": LintRule(
        "asks the model for a secret that it knows", "Configure secrets at the server instead."
    ),
    "secret-default": LintRule("has a secret as the default of a parameter", "Ask its author to remove it."),
    "unread": LintRule(
        "has more text than the lint reads, and what follows may hide something", "Read the rest before you use it."
    ),
    "huge-enum": LintRule("lists so many values that they may hide something", "Look through the values."),
}
"""Every rule, by its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One passage of a definition that a rule found."""

    rule: str
    severity: Severity
    tool: str
    """The id of the tool."""
    where: str
    """The part of the definition, such as `description` or `input_schema.properties.path.description`."""
    excerpt: str

    @property
    def why(self) -> str:
        """What is wrong, to follow the name of the tool."""
        return RULES[self.rule].why

    @property
    def advice(self) -> str:
        """What to do about it."""
        return RULES[self.rule].advice

    def payload(self) -> dict[str, str]:
        """The finding as JSON."""
        return {**asdict(self), "why": self.why, "advice": self.advice}

"""An office of 300 tools: fifteen services with four kinds of things each, and five things to do with every kind."""

from typing import Any

from toolcrib import Tool
from toolcrib.discovery import BaseDynamicToolProvider, GuardOptions

SERVICES = {
    "mail": ("message", "draft", "mailbox", "signature"),
    "calendar": ("event", "room", "reminder", "invitation"),
    "accounting": ("invoice", "payment", "expense", "budget"),
    "sales": ("customer", "offer", "contract", "discount"),
    "support": ("ticket", "complaint", "survey", "refund"),
    "people": ("employee", "vacation", "payslip", "applicant"),
    "travel": ("flight", "hotel", "train", "visa"),
    "warehouse": ("article", "shelf", "delivery", "return"),
    "build": ("pipeline", "release", "artifact", "runner"),
    "code": ("repository", "branch", "review", "issue"),
    "monitoring": ("alert", "dashboard", "incident", "probe"),
    "storage": ("file", "bucket", "snapshot", "share"),
    "marketing": ("campaign", "newsletter", "audience", "banner"),
    "legal": ("licence", "patent", "policy", "dispute"),
    "facilities": ("desk", "badge", "repair", "vehicle"),
}
ID = {"id": {"type": "integer", "description": "Which one, by its number."}}
FIELDS = {
    "title": {"type": "string", "description": "What it is called."},
    "details": {"type": "string", "description": "Everything else there is to say, in plain words."},
}
VERBS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "create": ("Create a new {} in {}.", FIELDS, ["title"]),
    "list": ("Show every {} in {}, the newest first.", {}, []),
    "get": ("Read one {} of {} with all its details.", ID, ["id"]),
    "update": ("Change the title or the details of a {} in {}.", {**ID, **FIELDS}, ["id"]),
    "delete": ("Delete a {} of {} for good.", ID, ["id"]),
}
TOOLS = [
    Tool(
        name=f"{verb}_{kind}",
        namespace=service,
        description=text.format(kind, service),
        input_schema={"type": "object", "properties": properties, "required": required},
    )
    for service, kinds in SERVICES.items()
    for kind in kinds
    for verb, (text, properties, required) in VERBS.items()
]


class Workspace(BaseDynamicToolProvider[Tool]):
    """Keeps all things in memory; there is one of each kind."""

    def __init__(self) -> None:
        super().__init__(guards=GuardOptions(repeats=3, lookups=10))
        kinds = [kind for kinds in SERVICES.values() for kind in kinds]
        self.things: dict[str, dict[int, dict[str, Any]]] = {
            kind: {1: {"id": 1, "title": f"The first {kind}"}} for kind in kinds
        }

    async def get_all_tools(self) -> list[Tool]:
        """All 300."""
        return TOOLS

    async def execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Do what the verb in the name says; a missing thing is a failure with a reason."""
        verb, _, kind = tool_name.partition("_")
        known = self.things[kind]
        if verb == "list":
            return {"success": True, "result": list(known.values())}
        if verb == "create":
            number = max(known, default=0) + 1
            known[number] = {"id": number, **arguments}
            return {"success": True, "result": known[number]}
        number = arguments["id"]
        if number not in known:
            return {"success": False, "error": f"There is no {kind} {number}."}
        if verb == "delete":
            return {"success": True, "result": known.pop(number)}
        known[number] |= arguments
        return {"success": True, "result": known[number]}

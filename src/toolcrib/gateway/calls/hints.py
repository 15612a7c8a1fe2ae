"""What a tool says of itself, read strictly: only a plain `true` counts."""

from toolcrib.model import Tool


def reads_only(tool: Tool) -> bool:
    """It says that it changes nothing."""
    return tool.annotations.get("readOnlyHint") is True


def repeatable(tool: Tool) -> bool:
    """It says that a second call with the same arguments changes nothing more."""
    return reads_only(tool) or tool.annotations.get("idempotentHint") is True


def destructive(tool: Tool) -> bool:
    """It says that it may destroy something, and does not say that it only reads."""
    return tool.annotations.get("destructiveHint") is True and not reads_only(tool)

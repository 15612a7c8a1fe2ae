"""Pin `toolcrib` to the `toolcrib-slim` of the same version, and pass its extras on."""

import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

SLIM = Path(__file__).parents[1] / "toolcrib-slim" / "pyproject.toml"


class SlimDependencies(MetadataHookInterface):
    """Sets the dependencies, which depend on the version."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the dependencies and one extra for each of the slim distribution."""
        extras = tomllib.loads(SLIM.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
        version = metadata["version"]
        metadata["dependencies"] = [f"toolcrib-slim[server]=={version}"]
        metadata["optional-dependencies"] = {name: [f"toolcrib-slim[{name}]=={version}"] for name in extras}

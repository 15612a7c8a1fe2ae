"""Options that verbs share."""

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="The settings file, instead of the first place that has one."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Debug = Annotated[
    bool,
    typer.Option("--debug", envvar="TOOLCRIB_DEBUG", show_envvar=False, help="Show logs, and where an error arose."),
]

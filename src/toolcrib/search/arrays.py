"""The types of arrays of other packages, for annotations; numpy is loaded when one of them is evaluated."""

from typing import Any


def __getattr__(name: str) -> Any:
    import numpy as np
    import numpy.typing as npt

    if name != "Vectors":
        raise AttributeError(f"module 'toolcrib.search.arrays' has no attribute {name!r}")
    return npt.NDArray[np.float32]

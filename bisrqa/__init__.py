"""Trainable question answering over knowledge graphs."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Imported when first asked for: `import bisrqa` alone takes no time and loads no torch.
_PUBLIC = {
    "PushResult": "bisrqa.walk",
    "SPPRResult": "bisrqa.walk",
    "WalkGraph": "bisrqa.walk",
    "push": "bisrqa.walk",
    "sppr": "bisrqa.walk",
}


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])

"""Plug-ins: a registry is a dict of names to import paths; only the one named is imported."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from icestream.errors import ConfigError, NotBuilt


def plugin(kind: str, registry: Mapping[str, str], name: str) -> Any:
    """Import the class `module:Class` of this name; `kind` is `catalog`, `source` or `format`."""
    path = registry.get(name)
    if path is None:
        raise NotBuilt(
            f"`{kind}` of type `{name}` is not built yet",
            hint=f"built are: {', '.join(sorted(registry))}",
        )
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"`{kind}` of type `{name}` needs the package `{missing.name}`",
            hint=f"pip install 'icestream[{name}]'",
        ) from missing

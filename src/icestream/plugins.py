"""Plug-ins: a registry is a literal dict of import paths, and only what is named is imported."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from icestream.errors import ConfigError, NotBuilt


def plugin(kind: str, registry: Mapping[str, str], name: str) -> Any:
    """The class behind `module:Class`, for `catalog`, `source` or `format` of this type."""
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

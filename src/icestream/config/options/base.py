"""What all options share: strictness, the marker of what is not built yet, `false` as a switch.

An option that is specified but does not exist yet carries `later(...)`: on a field, on a variant's
class, or on some values of a field (`later_values`). Building it means deleting that marker.
"""

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Tag
from pydantic.config import JsonDict

NOT_BUILT = "x-not-built"
T = TypeVar("T")


def later(hint: str) -> JsonDict:
    """Mark a field or a variant as not built yet; the hint says what to do until then."""
    return {NOT_BUILT: hint}


def later_values(**hints: str) -> JsonDict:
    """Mark some values of a field as not built yet."""
    return {NOT_BUILT: dict(hints)}


def schema_name(class_name: str) -> str:
    """Return the name of an options class in docs/icestream.schema.json, which editors show."""
    return class_name.removesuffix("Options").removesuffix("Config")


class Model(BaseModel):
    """The rules for every part of the file: no unknown keys, no change after loading."""

    model_config = ConfigDict(
        model_title_generator=lambda model: schema_name(model.__name__),
        extra="forbid",
        frozen=True,
        validate_default=True,  # defaults are resolved against the file's folder as well
        revalidate_instances="always",
        hide_input_in_errors=True,
    )


def with_type(default: str) -> BeforeValidator:
    """Make a validator that fills in `type:` where it is left out."""

    def fill(value: object) -> object:
        return {"type": default, **value} if isinstance(value, dict) else value

    return BeforeValidator(fill)


def _is_off(value: object) -> str:
    return "off" if value is False or value == "false" else "on"


# An object, or `false` to switch it off.
Switch = Annotated[
    Annotated[T, Tag("on")]
    | Annotated[Literal[False], BeforeValidator(lambda _: False), Tag("off")],
    Discriminator(_is_off),
]

Names = tuple[str, ...]

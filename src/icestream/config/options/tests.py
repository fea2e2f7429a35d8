"""Options of `tests:`: checks of a pipeline file that need no network."""

from typing import Any

from pydantic import Field

from icestream.config.options.base import Model
from icestream.config.values import Location


class Expectation(Model):
    """What a table holds after a test."""

    table: str = Field(description="namespace.table")
    rows: tuple[dict[str, Any], ...] = Field(description="All rows of the table, in any order")


class PipelineTest(Model):
    """A test of the pipeline without a network."""

    name: str = Field(min_length=1, description="What is shown when it fails")
    input: Location = Field(description="File of records")
    expect: Expectation = Field(description="What the table must hold afterwards")

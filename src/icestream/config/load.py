"""Reads a pipeline file. Relative paths in it are relative to the folder of the file."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from icestream.config.checks import check
from icestream.config.document import Document, DocumentError, parse
from icestream.config.model import PipelineConfig
from icestream.config.not_built import not_built
from icestream.config.options.table import Defaults
from icestream.config.problems import Problem, ProblemReporter, from_pydantic
from icestream.config.substitute import Substitution, substitute
from icestream.errors import ConfigError


@dataclass(frozen=True)
class LoadedConfig:
    """A pipeline whose rules carry the defaults, with its file, warnings and secrets."""

    pipeline: PipelineConfig
    path: Path
    warnings: list[str] = field(default_factory=list)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)  # values from outside
    document: Document = field(default_factory=Document, repr=False)

    def where(self, *loc: str | int) -> str:
        """Return file and line of an option: `icestream.yml:31` for where("tables", 0, "name")."""
        return f"{self.path}:{self.document.line(loc)}"


def load(path: str | Path, env: Mapping[str, str] | None = None) -> LoadedConfig:
    """Read a file, fill in `${…}` and check it; one ConfigError has all that is wrong with it."""
    path = Path(path)
    document = _read(path)
    filled = substitute(document.data, os.environ if env is None else env, path.absolute().parent)
    report = ProblemReporter(path, document, frozenset(filled.filled))
    if filled.unresolved:
        raise report.error(Problem(loc, e.what, e.hint) for loc, e in filled.unresolved)
    pipeline = _validate(filled, path, report)
    problems = [*check(pipeline), *not_built(pipeline)]
    if problems:
        raise report.error(problems)
    secrets = frozenset(filled.values)
    return LoadedConfig(_with_defaults(pipeline), path, secrets=secrets, document=document)


def _read(path: Path) -> Document:
    try:
        document = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}", hint="`icestream init` writes one") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except DocumentError as problem:
        raise ConfigError(problem.what, where=f"{path}:{problem.line}") from None
    if not isinstance(document.data, dict):
        what = "the file is empty" if document.data is None else "the file is not a mapping"
        raise ConfigError(what, where=f"{path}:1", hint="`icestream init` writes an example")
    return document


def _validate(filled: Substitution, path: Path, report: ProblemReporter) -> PipelineConfig:
    context = {"folder": str(path.absolute().parent)}
    try:
        return PipelineConfig.model_validate(filled.data, context=context)
    except ValidationError as error:
        problems = from_pydantic(error.errors(include_url=False, include_input=False), filled.data)
    raise report.error(problems)


def _with_defaults(pipeline: PipelineConfig) -> PipelineConfig:
    """Copy `defaults` into each rule that does not set them itself; properties are merged."""
    shared = {name: getattr(pipeline.defaults, name) for name in Defaults.model_fields}
    rules = []
    for rule in pipeline.tables:
        missing = {k: v for k, v in shared.items() if k not in rule.model_fields_set}
        properties = {**pipeline.defaults.properties, **rule.properties}
        rules.append(rule.model_copy(update={**missing, "properties": properties}))
    return pipeline.model_copy(update={"tables": tuple(rules)})

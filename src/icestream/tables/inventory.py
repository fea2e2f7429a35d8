"""Inventory: the tables of a pipeline as the catalog lists them; no JVM."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import RESTError, ValidationError

from icestream.config.model import PipelineConfig
from icestream.config.options.table import TableRule
from icestream.config.route import Router
from icestream.errors import Unreachable
from icestream.tables.design import quarantine_name
from icestream.tables.marker import property_name

# What catalogs raise that do not answer, by module: not each of them is installed everywhere.
_AWAY = ("sqlalchemy", "sqlite3", "requests", "urllib3")


def routed_tables(config: PipelineConfig, catalog: Catalog) -> list[tuple[str, TableRule]]:
    """Tables by fixed name, by configured topics, and those that a run of ours has made."""
    router = Router(config)
    topics = getattr(config.source, "topics", None) or ()
    known = [router.route(topic) for topic in topics]
    found = {route.table: route.rule for route in [*router.fixed(), *known] if route}
    left = list(catalog.list_namespaces())
    while left:
        namespace = left.pop()
        if not router.reaches(".".join(namespace)):
            continue
        left.extend(each for each in catalog.list_namespaces(namespace) if each != namespace)
        for name in (".".join(each) for each in catalog.list_tables(namespace)):
            rule = router.owner(name)
            if rule and name not in found and _is_ours(catalog, name, config.name):
                found[name] = rule
    return sorted(found.items())


def _is_ours(catalog: Catalog, name: str, pipeline: str) -> bool:
    """Whether a run of this pipeline has written to the table, or it is too broken to tell."""
    try:
        table = catalog.load_table(name)
    except (FileNotFoundError, ValueError, ValidationError):
        return True
    return property_name(pipeline) in table.properties or any(
        snapshot.summary and snapshot.summary["icestream.pipeline"] == pipeline
        for snapshot in table.metadata.snapshots
    )


@contextmanager
def translate_catalog_errors(name: str) -> Iterator[None]:
    """A catalog that does not answer says so in many ways; all of them are exit 69."""
    try:
        yield
    except Exception as failure:
        module = type(failure).__module__.partition(".")[0]
        if module not in _AWAY and not isinstance(failure, RESTError | ConnectionError):
            raise
        raise Unreachable(
            f"catalog `{name}` does not answer: {type(failure).__name__}: "
            + str(failure).splitlines()[0][:200],
            hint="check it with `icestream validate`",
        ) from None


def table_names(config: PipelineConfig, catalog: Catalog) -> list[str]:
    """The pipeline's tables, and their quarantines where there are any."""
    found = []
    for name, _ in routed_tables(config, catalog):
        found.append(name)
        if catalog.table_exists(quarantine_name(name)):
            found.append(quarantine_name(name))
    return found

"""Options of `catalog:`: where the tables are."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, SecretStr

from icestream.config.options.base import Model, later, with_type
from icestream.config.values import Location, PassThrough


class CatalogBase(Model):
    """What every catalog has."""

    name: str = Field("lake", description="Catalog name: tables are <name>.<namespace>.<table>")
    properties: PassThrough = Field(
        default_factory=dict, description="Iceberg catalog properties, as they are", repr=False
    )


class LocalCatalogOptions(CatalogBase):
    """SQLite and a folder: needs no server."""

    type: Literal["local"] = Field("local", description="SQLite and a folder")
    warehouse: Location = Field("./warehouse", description="Folder of the tables' files")


class RestCatalogOptions(CatalogBase):
    """An Iceberg REST catalog."""

    type: Literal["rest"] = Field(description="An Iceberg REST catalog")
    uri: str = Field(description="Address of the catalog")
    warehouse: str | None = Field(None, description="Warehouse name or location on the server")
    credential: SecretStr | None = Field(None, description="OAuth2 client id and secret, id:secret")
    token: SecretStr | None = Field(None, description="Bearer token instead of a credential")
    oauth2_server_uri: str | None = Field(None, description="Token endpoint, if not the catalog's")
    scope: str | None = Field(None, description="OAuth2 scope")


class JdbcCatalogOptions(CatalogBase):
    """Tables registered in a database over JDBC."""

    model_config = ConfigDict(json_schema_extra=later("use `type: local`"))

    type: Literal["jdbc"] = Field(description="A database over JDBC")
    uri: str = Field(description="JDBC URL of the database", repr=False)
    warehouse: Location = Field(description="Location of the tables' files")


class HiveCatalogOptions(CatalogBase):
    """Hive Metastore."""

    model_config = ConfigDict(json_schema_extra=later("use `type: local`"))

    type: Literal["hive"] = Field(description="Hive Metastore")
    uri: str = Field(description="Thrift address of the metastore")
    warehouse: Location | None = Field(None, description="Location of the tables' files")


class GlueCatalogOptions(CatalogBase):
    """AWS Glue."""

    model_config = ConfigDict(json_schema_extra=later("use `type: local`"))

    type: Literal["glue"] = Field(description="AWS Glue")
    warehouse: Location = Field(description="Location of the tables' files")


class HadoopCatalogOptions(CatalogBase):
    """A folder on a file system with atomic rename; no server."""

    model_config = ConfigDict(json_schema_extra=later("use `type: local`"))

    type: Literal["hadoop"] = Field(description="A folder on a file system with atomic rename")
    warehouse: Location = Field(description="Location of the tables' files")


Catalog = Annotated[
    LocalCatalogOptions
    | RestCatalogOptions
    | JdbcCatalogOptions
    | HiveCatalogOptions
    | GlueCatalogOptions
    | HadoopCatalogOptions,
    Field(discriminator="type"),
    with_type("local"),
]

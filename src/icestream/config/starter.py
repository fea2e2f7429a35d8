"""The commented pipeline files that `icestream init` writes."""

from typing import Literal

StarterKind = Literal["append", "cdc", "multi"]

_APPEND = """\
# icestream pipeline: JSON lines from a folder into one Iceberg table.
#   icestream validate    checks this file
#   icestream run --once  takes what is there, commits, stops

name: events                    # id of the pipeline: a-z 0-9 _ -

catalog:                        # SQLite and a folder: needs no server
  type: local
  warehouse: ./warehouse        # paths are relative to this file

source:
  type: files
  path: ./in                    # put files of JSON lines here; complete files only
  pattern: '*.jsonl'
  format: {type: json}          # json | raw

commit_interval: 1m             # 30s 5m 1h; or once

tables:
  - name: shop.events
    # partition_by: [days(event_time)]    # years months days hours bucket(16, x) truncate(10, x)
    # sort_by: [user_id]
    # columns: {amount: "decimal(12,2)"}  # declared types; the rest is inferred
    # except_columns: [card_number]       # not written
    # metadata_columns: true              # where each row came from: _src_topic, _src_offset, …
    schema_evolution: evolve    # a new field becomes a column; or freeze, ignore
    bad_records: quarantine     # kept in shop.events__quarantine; or fail, drop
    # properties: {write.target-file-size-bytes: "268435456"}

# spark: {spark.master: "local[*]"}       # Spark configuration, as it is
"""

_MULTI = """\
# icestream pipeline: several topics into several Iceberg tables, by rules.
#   icestream validate    checks this file
#   icestream run         runs until it is stopped

name: shop                      # id of the pipeline: a-z 0-9 _ -

catalog:                        # SQLite and a folder: needs no server
  type: local
  warehouse: ./warehouse        # paths are relative to this file

source:
  type: generator               # made-up shop events in the topics page_events and order_changes
  rate: 1000                    # rows per second
  # rows: 100000                # stop after so many
  # seed: 7                     # other rows

commit_interval: 10s            # 30s 5m 1h; or once

defaults:                       # for every table, unless its rule differs
  schema_evolution: evolve      # evolve | freeze | ignore
  bad_records: quarantine       # quarantine | fail | drop

tables:                         # the first rule that matches the whole topic name wins
  - {match: "tmp_.*", skip: true}
  - match: "(?P<kind>page|order)_(?P<what>\\\\w+)"
    name: "{kind}.{what}"       # page_events → page.events, order_changes → order.changes
  - match: "(?P<topic>\\\\w+)"    # everything else
    name: "other.{topic}"
    metadata_columns: true
"""

_CDC = """\
# icestream pipeline: mirrors database tables from Debezium's change events in Kafka.

name: mirror                    # id of the pipeline: a-z 0-9 _ -

catalog:                        # SQLite and a folder: needs no server
  type: local
  warehouse: ./warehouse        # paths are relative to this file

source:
  type: kafka
  bootstrap_servers: ${KAFKA:-localhost:9092}
  topic_pattern: 'shop\\.public\\.(?P<table>\\w+)'
  start: earliest               # earliest | latest | a timestamp
  format: {type: debezium}
  # options: {kafka.security.protocol: SASL_SSL}    # Spark's Kafka options, as they are

commit_interval: 1m             # 30s 5m 1h; or once

defaults:                       # for every table, unless its rule differs
  mode: upsert                  # one row per key
  deletes: hard                 # hard | soft: the row stays, _is_deleted = true
  truncate: apply               # apply | stop | ignore

tables:                         # the first rule that matches the whole topic name wins
  - {match: ".*\\\\.tmp_.*", skip: true}
  - match: "shop\\\\.public\\\\.orders"
    name: shop.orders
    keys: [order_id]            # default: the key of the record
    partition_by: [days(created_at)]
  - name: "shop.{table}"
"""


def starter(kind: StarterKind = "append") -> str:
    """Return a commented pipeline file."""
    return {"append": _APPEND, "cdc": _CDC, "multi": _MULTI}[kind]

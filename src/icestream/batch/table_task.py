"""What the tasks of a batch get to know about one table; picklable."""

from dataclasses import dataclass

from icestream.formats import Format
from icestream.schema import Rule
from icestream.sources import RecordFloors
from icestream.upsert.apply import MirrorTaskInput
from icestream.upsert.change_rules import ChangeRules
from icestream.write.stage import StageTarget


@dataclass(frozen=True)
class TableTaskInput:
    """What a task must know to decode and stage records of one table."""

    target: StageTarget
    quarantine: StageTarget | None  # None: does not exist yet; a bad record asks for it
    floors: RecordFloors
    quarantine_floors: RecordFloors
    format: Format
    schema_evolution: Rule
    bad_records: str
    metadata_columns: bool
    dropped_columns: frozenset[str]
    declared: frozenset[str] = frozenset()  # columns whose type the pipeline file declares
    upsert: "UpsertTaskInput | None" = None  # None: every record is a row
    shuffle_by_partition: bool = False  # before rows are written


@dataclass(frozen=True)
class UpsertTaskInput:
    """How the changes of a mirror are read, and shuffled to the tasks that apply them."""

    terms: ChangeRules
    buckets: int = 1
    groups: int = 1
    mirror: MirrorTaskInput | None = None  # None: its keys are not known yet, so nothing is applied

"""Options of `maintenance:`: what keeps the tables fast."""

from datetime import timedelta

from pydantic import Field

from icestream.config.options.base import Model, Switch
from icestream.config.values import PassThrough, PositiveDuration


class ExpireSnapshots(Model):
    """Which snapshots go."""

    older_than: PositiveDuration = Field(timedelta(days=1), description="Age of what goes")
    retain_last: int = Field(20, ge=1, description="So many snapshots always stay")
    max_snapshots: int = Field(500, ge=1, description="More than this go whatever their age")


class RemoveOrphanFiles(Model):
    """Which unreferenced files go."""

    older_than: PositiveDuration = Field(timedelta(days=3), description="Age of what goes")


class MaintenanceOptions(Model):
    """What keeps the tables fast; what runs is decided from a table's health."""

    every: PositiveDuration = Field(
        timedelta(minutes=5), description="How often the tables' health is looked at"
    )
    rewrite_data_files: Switch[PassThrough] = Field(
        default_factory=dict,
        description="Compaction; its options are spelt as those of Iceberg's action",
    )
    expire_snapshots: Switch[ExpireSnapshots] = Field(
        default_factory=ExpireSnapshots, description="Snapshot expiry"
    )
    rewrite_position_delete_files: Switch[PassThrough] = Field(
        default_factory=dict, description="Compaction of deletes; its option is `min-input-files`"
    )
    rewrite_manifests: Switch[PassThrough] = Field(
        default_factory=dict, description="Compaction of manifests, with the action's options"
    )
    remove_orphan_files: Switch[RemoveOrphanFiles] = Field(
        default_factory=RemoveOrphanFiles, description="Removal of files that no snapshot names"
    )

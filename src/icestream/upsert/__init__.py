"""Upserts: changes of rows by key, at a cost that grows with the batch and not with the table.

change_rules    what each decoded record does to the mirror
changes         what is decoded on one side of the shuffle and applied on the other
fold            the changes of each key, in order, down to the one that applies
value_origins   where a column that an event does not carry was last set
old_rows        single columns of single rows of data files
apply           the second half of a batch: fold ▸ look up ▸ stage rows ▸ note deleted positions
indexes         the key index of each mirror, at the snapshot that its table is planned from

docs/design/upsert.md is the why.
"""

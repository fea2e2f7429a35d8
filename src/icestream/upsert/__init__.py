"""Upserts: changes of rows by key, at a cost that grows with the batch and not with the table.

changes    what is decoded on one side of the shuffle and applied on the other
fold       the changes of each key, in order, down to what becomes of its row
oldrows    single columns of single rows of data files
task       the second half of a batch: fold ▸ look up ▸ stage rows ▸ note the positions that die
deletes    those positions as position-delete files

docs/design/upsert.md is the why.
"""

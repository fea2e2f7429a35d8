"""The key index of an upsert table: key → data file and position, in sorted runs on local disk.

keys · sequences · entries    what is stored about a row, column by column
sorted_run · bucket · merge   sorted files, the newest entry of a key, fewer and larger files
files · manifest · key_index  numbers of data files, one state of the index, the index of a table
reader · rewrite_update       for tasks: one state to look up in; entries of a rewrite's new files
live_rows · tombstones        the live rows of data files; deleted keys in files beside the table
build · follow                the index made anew, or brought to the table's snapshot

All of it is derived data: without it the index is built again. docs/design/index.md is the why.
"""

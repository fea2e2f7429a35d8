"""The key index of an upsert table: key → data file and position, in sorted runs on local disk.

keys · sequences · entries    what is stored about a row, column by column
run · bucket · merge          sorted files, the newest entry of a key, fewer and larger files
files · manifest · store      numbers of data files, one state of the index, the index of a table
live · tombstones             what the table itself says
build · follow                the index made anew, or brought to where the table is

All of it is derived data: without it the index is built again. docs/design/index.md is the why.
"""

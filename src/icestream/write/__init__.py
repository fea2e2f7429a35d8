"""Stages files of Iceberg tables in a Spark task: data files and position-delete files.

stage · target · staged   rows in, staged files out; what a task is given; whether files are there
partition · sort · spill  rows by partition, in the table's order, on disk while they wait
parquet · metrics · modes Parquet files and their Iceberg metrics
conform                   batches in exactly a table's columns
position_deletes          deleted rows, as files that every engine reads
"""

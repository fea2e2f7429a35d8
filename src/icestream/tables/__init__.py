"""Tables: how a table stands in the catalog and in storage, read without a JVM."""

"""The commit protocol: the table's own marker is the only checkpoint that matters."""

"""Tables and the files in them: create, evolve, stage."""

"""Run: a process that runs pipelines: starts, supervises, restarts, explains and ends them."""

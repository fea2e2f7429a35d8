"""The options of a pipeline file, one file per part; `config.model` puts them together."""

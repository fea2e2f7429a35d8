"""Maintenance: what keeps tables fast while a stream writes them."""

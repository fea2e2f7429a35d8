"""A deterministic simulation of the commit protocol: the real rules in a small, hostile world.

source.py    what is read: every record is one bit
world.py     catalog and tables: compare-and-set, a fate per request, others who write
rules.py     what must hold after every commit
writers.py   the runs: Pipeline's steps around the real TableCommitter and the real protocol
port.py      how a run asks the catalog, so that others can come between
explore.py   the seeded scheduler; `replay(seed)` shows one schedule step by step
variants.py  protocols that are known to be wrong, so that the rules can be seen to bite
"""

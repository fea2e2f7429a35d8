"""A deterministic simulation of the commit protocol: the real code in a small, hostile world.

source.py        what is read: every record is one bit
world.py         catalog and tables: compare-and-set, a fate per request, others who write
rules.py         what must hold after every commit
writers.py       the runs: the real Pipeline, with everything below it that decides about commits
compactions.py   the real commit of a rewrite, beside the runs
port.py          how real code asks the catalog, so that others can come between
explore.py       the seeded scheduler; `replay(seed)` shows one schedule step by step
variants.py      protocols that are known to be wrong, so that the rules can be seen to bite
"""

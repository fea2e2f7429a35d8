"""Routing: the same answers at the start of a run as while it runs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.config.checks import check
from icestream.config.model import PipelineConfig
from icestream.config.route import TABLE_NAME, Router
from icestream.errors import ConfigError
from icestream.tables.design import quarantine_name


def pipeline(*rules):
    source = {"type": "files", "path": "in"}
    facts = {"name": "p", "source": source, "tables": list(rules)}
    return PipelineConfig.model_validate(facts, context={"folder": "/"})


def router(*rules):
    return Router(pipeline(*rules))


ORDERS = {"match": r"orders-.*", "name": "shop.orders"}
SKIPPED = {"match": r"tmp-.*", "skip": True}
BY_NAME = {"match": r"(?P<kind>[^-]+)-(?P<rest>.+)", "name": "raw.{kind}_{rest}"}
CATCH_ALL = {"name": "shop.rest"}


def table(one, topic):
    found = one.route(topic)
    return found.table if found else None


def test_the_first_rule_that_matches_wins():
    one = router(SKIPPED, ORDERS, BY_NAME)
    assert table(one, "orders-1") == "shop.orders"
    assert table(one, "tmp-1") is None
    assert table(one, "clicks-eu") == "raw.clicks_eu"
    assert table(one, "else") is None
    assert table(router(ORDERS, CATCH_ALL), "else") == "shop.rest"


def test_a_match_covers_the_whole_name():
    one = router(ORDERS)
    assert table(one, "my-orders-1") is None
    assert table(one, "orders-1\n") is None


def test_answers_are_kept():
    one = router(BY_NAME)
    assert one.route("a-b") is one.route("a-b")


def test_a_table_name_that_cannot_be():
    with pytest.raises(ConfigError, match="would be called"):
        router(BY_NAME).route("a-b c")


def test_fixed_tables_need_no_topic():
    one = router(SKIPPED, ORDERS, BY_NAME, CATCH_ALL)
    assert [each.table for each in one.fixed()] == ["shop.orders", "shop.rest"]
    assert [each.rule.match for each in one.fixed()] == [r"orders-.*", None]


def test_the_owner_of_a_table_is_the_rule_that_named_it():
    one = router(SKIPPED, ORDERS, BY_NAME)
    assert one.owner("raw.clicks_eu").name == BY_NAME["name"]
    assert one.owner("shop.orders") is None  # fixed: it needs no looking for
    assert one.owner("raw.clicks") is None
    assert one.owner("shop.other") is None
    assert one.owner("shopXorders") is None


def test_namespaces_to_look_in():
    one = router(SKIPPED, ORDERS, {**BY_NAME, "name": "lake.raw.{kind}"})
    assert [name for name in ("lake", "lake.raw", "lake.raw.deep") if one.reaches(name)] == [
        "lake", "lake.raw", "lake.raw.deep",
    ]  # fmt: skip
    others = ("shop", "raw", "lak", "lake2", "lake.rawer", "lake.other")
    assert not [name for name in others if one.reaches(name)]
    assert not router(ORDERS, CATCH_ALL).reaches("shop")


def test_a_quarantine_table_is_nobodys_own():
    """It carries the pipeline's marker too, but it never sets a start and is no table to fill."""
    one = router(BY_NAME)
    mine = table(one, "a-b")
    assert one.owner(mine) is not None
    assert one.owner(quarantine_name(mine)) is None


RULES = {
    "plain": {"match": r"(?P<one>[a-z]+)-(?P<two>[a-z]+)", "name": "raw.{one}_{two}"},
    "a group with dots": {"match": r"(?P<one>.+)", "name": "raw.{one}"},
    "a group in the namespace": {"match": r"(?P<one>\w+)[.](?P<two>\w+)", "name": "{one}.{two}"},
    "a group that may be empty": {
        "match": r"(?P<one>\w+)(-(?P<two>\w+))?",
        "name": "raw.{one}{two}",
    },
}


@settings(max_examples=60)
@given(topic=st.from_regex(r"[ab_]{1,2}([.-][ab]{1,2}){0,2}", fullmatch=True))
@pytest.mark.parametrize("name", RULES)
def test_a_restart_finds_every_table_that_a_topic_made(name, topic):
    """A table that is not found at the start has its marker and its ledger overlooked."""
    rule = RULES[name]
    one = router(rule)
    try:
        mine = table(one, topic)
    except ConfigError:
        return  # refused: no table, nothing to find
    if mine is None or check(pipeline(rule)):
        return
    assert TABLE_NAME.fullmatch(mine)
    assert one.owner(mine) is not None
    namespace = mine.rpartition(".")[0]
    while namespace:  # a look goes down from the top
        assert one.reaches(namespace)
        namespace = namespace.rpartition(".")[0]

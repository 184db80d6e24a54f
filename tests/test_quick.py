"""The list of slow tests, and how it is made."""

import ast

from quick import TESTS, choose_slow, slow_functions


def test_each_name_in_the_list_is_a_tests():
    names: dict[str, set[str]] = {}
    for function in slow_functions():
        file, *_, name = function.split("::")
        if file not in names:
            tree = ast.walk(ast.parse((TESTS / file).read_text(encoding="utf-8")))
            names[file] = {node.name for node in tree if isinstance(node, ast.FunctionDef)}
        assert name in names[file], function


def test_the_cheapest_that_fit_the_budget_are_quick():
    calls = {"a::one": 1.0, "a::two": 5.0, "b::three": 2.0, "b::four": 0.5}
    counts = {"a::one": 3, "a::two": 1, "b::three": 1, "b::four": 1}
    # Fixtures of a are shared by its four tests: one takes 4 seconds of them, two 2 more.
    setups = {"a": 4.0, "b": 0.0}
    assert choose_slow(calls, setups, counts, 7) == {"a::two": 6.0}
    assert choose_slow(calls, setups, counts, 3) == {"a::one": 4.0, "a::two": 6.0}
    assert choose_slow(calls, setups, counts, 100) == {}

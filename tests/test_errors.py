"""The shared error words carry a code and list every problem."""

import pytest
from dsparkd.statemachine.errors import EngineError, Refused, refuse_all


def test_all_problems_are_listed_in_one_refusal() -> None:
    with pytest.raises(Refused) as caught:
        refuse_all("settings", ["a = 1: expected 2", "b = 3: expected 4"])
    assert caught.value.code == "BAD_CONFIG"
    assert "a = 1" in str(caught.value)
    assert "b = 3" in str(caught.value)
    assert isinstance(caught.value, EngineError)


def test_no_problem_is_no_refusal() -> None:
    assert refuse_all("settings", []) is None

"""The settings that choose a policy: exactly one, every fault at once, and policies that other packages bring."""

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from dsparkd.scheduler.core.policies.auto import Auto
from dsparkd.scheduler.core.policies.fixed import Fixed
from dsparkd.scheduler.core.policies.schedule import MaxConcurrency, Schedule
from dsparkd.scheduler.service import policy_settings
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.service.local import local
from dsparkd.scheduler.service.loop import Service
from dsparkd.statemachine.errors import Refused


def settings(**values: Any) -> Settings:
    return Settings.from_mapping({"target": "t", **values})


def refusal(**values: Any) -> str:
    with pytest.raises(Refused) as caught:
        settings(**values)
    assert caught.value.code == "BAD_CONFIG"
    return str(caught.value)


def test_each_key_makes_its_policy_and_none_makes_the_default(tmp_path: Path) -> None:
    table = Schedule(((1, 7), (4, 3)))
    path = tmp_path / "engine.toml"
    path.write_text('target = "t"\ndraft_len_schedule = {4 = 3, 1 = 7}\n')
    assert Settings.load(path).draft_policy() == table
    assert settings(draft_len_schedule={1: 7, 4: 3}).draft_policy() == table
    assert settings(policy="schedule:1=7/4=3").draft_policy() == table
    assert settings(max_concurrency=4).draft_policy() == settings(policy="max_concurrency:4").draft_policy()
    assert settings(max_concurrency=4).draft_policy() == MaxConcurrency(4)
    assert settings().draft_policy() == Auto()
    assert settings(measure_costs=False, cost_table="costs.json").draft_policy() == Auto()
    assert settings(measure_costs=False).draft_policy() == Fixed(7)  # auto weighs step times
    one = settings(draft_len_schedule={"1": 7, "4": 3})
    assert Settings.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    "values",
    [
        {"policy": "fixed:7", "max_concurrency": 4},
        {"policy": "confidence", "draft_len_schedule": {1: 7}},
        {"policy": "confidence", "max_concurrency": 2},
        {"draft_len_schedule": {1: 7}, "max_concurrency": 2},
        {"policy": "schedule:1=7", "draft_len_schedule": {1: 7}},
    ],
    ids=lambda values: "+".join(values),
)
def test_two_keys_are_refused_and_both_are_named(values: dict[str, Any]) -> None:
    said = refusal(**values)
    assert f"{' and '.join(values)}: expected exactly one of" in said
    assert all(f"{key} = {value!r}" in said for key, value in values.items())


def test_every_fault_of_every_key_is_in_one_refusal() -> None:
    said = refusal(
        draft_len_schedule={"0": 7, "2": 3, "4": 5, "x": -1, "8": 1.5}, max_draft_len=6, max_concurrency=0, wibble=1
    )
    for part in (
        "wibble: unknown",
        "max_concurrency = 0: expected an integer, 1 or more",
        "draft_len_schedule and max_concurrency: expected exactly one",
        "draft_len_schedule: key '0' = 7: expected a number of rows",
        "draft_len_schedule: key 4 = 5: expected 3 or less",
        "draft_len_schedule: key 'x' = -1: expected a number of rows",
        "draft_len_schedule: key 'x' = -1: expected a number of drafts",
        "draft_len_schedule: key '8' = 1.5: expected a number of drafts",
        "draft_len_schedule: key 2 = 3: expected max_draft_len = 6 at the smallest key",
        "9 problem(s)",
    ):
        assert part in said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"draft_len_schedule": {}}, "draft_len_schedule: no keys: expected at least one"),
        ({"draft_len_schedule": 7}, "draft_len_schedule = 7: expected a table"),
        ({"draft_len_schedule": {"1": 7, 1: 3}}, "key 1 = 3: expected each key once, 1 = 7 is there already"),
        ({"policy": "schedule:2=3/4=1", "max_draft_len": 7}, "key 2 = 3: expected max_draft_len = 7"),
        ({"policy": "schedule:2=3/4=9/x=1"}, "2 problem(s)"),
        ({"policy": ""}, "policy = '': expected text"),
        ({"policy": Fixed(3)}, "an object goes to Service(policy=...)"),
    ],
)
def test_a_fault_names_key_value_and_expectation(values: dict[str, Any], said: str) -> None:
    assert said in refusal(**values)
    with pytest.raises(Refused):
        Settings(target="t", **values)


def test_local_cannot_pass_an_object_and_says_so() -> None:
    with pytest.raises(Refused, match=r"an object goes to Service\(policy=...\)"), local(target="t", policy=Fixed(3)):
        pass


def test_a_service_takes_an_object_or_a_setting_never_both(tmp_path: Path) -> None:
    bind = f"ipc://{tmp_path}/engine"
    service = Service(settings(target="scripted:1", bind=bind), policy=Fixed(3))
    try:
        assert service.core.policy == Fixed(3)
    finally:
        service.close()
    for values in ({"policy": "fixed:2"}, {"max_concurrency": 3}, {"max_draft_len": 2}):
        with pytest.raises(Refused, match=rf"policy fixed is passed as an object.*\n.*{next(iter(values))}"):
            Service(settings(bind=bind, **values), policy=Fixed(3))
    with pytest.raises(Refused) as caught:
        Service(settings(bind=bind), policy=object())  # type: ignore[arg-type]
    assert all(f"{key}: missing" in str(caught.value) for key in ("name", "version", "max_len", "decide"))


class Brought:
    """A policy as a package brings it."""

    name, version, max_len = "brought", 1, None

    def __init__(self, argument: str) -> None:
        self.length = int(argument or "2")

    def decide(self, rows: Any, ledger: Any) -> list[int]:
        return [self.length] * len(rows)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if packages had been installed that bring policies: one that works and three that do not."""
    brought = {"brought": f"{__name__}:Brought", "gone": "no_such_module:X", "wrong": "builtins:str", "fixed": "x:y"}
    points = EntryPoints(EntryPoint(name, value, policy_settings.GROUP) for name, value in brought.items())
    monkeypatch.setattr(policy_settings, "entry_points", lambda group: points.select(group=group))


@pytest.mark.usefixtures("installed")
def test_a_package_brings_a_policy_and_a_broken_one_is_refused_by_name() -> None:
    for text, length in (("brought", 2), ("brought:5", 5)):
        made = settings(policy=text).draft_policy()
        assert isinstance(made, Brought)
        assert made.length == length
    assert settings(policy="fixed:3").draft_policy() == Fixed(3), "built-in names cannot be taken over"
    assert "no_such_module:X failed: ModuleNotFoundError" in refusal(policy="gone:1")
    assert "Brought failed: ValueError" in refusal(policy="brought:x")
    assert "a str" in refusal(policy="wrong:1")
    assert "decide: missing" in refusal(policy="wrong:1")
    assert "expected fixed:N" in refusal(policy="nothing")
    assert "brought" in refusal(policy="nothing")


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({}, "auto"),
        ({"measure_costs": False}, "fixed:7"),
        ({"policy": "fixed:2"}, "fixed:2"),
        ({"max_concurrency": 3}, None),  # which says it
    ],
)
def test_the_effective_configuration_says_which_policy_is_in_force(settings: dict[str, Any], shown: str | None) -> None:
    made = Settings.from_mapping({"target": "t", **settings})
    assert made.shown()["policy"] == shown
    assert made.shown("mine")["policy"] == "mine"

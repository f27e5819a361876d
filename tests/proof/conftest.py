"""The quick proof, run once for all tests of this folder; and how long drawn tests run (HYPOTHESIS_PROFILE)."""

import os
from typing import Any

import pytest
from dsparkd.scheduler.proof.verdict import prove
from dsparkd.scheduler.testing_rules import register_profiles
from hypothesis import settings

register_profiles()
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def verdict() -> dict[str, Any]:
    return prove(quick=True, jobs=2)

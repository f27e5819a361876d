"""The pages tell the truth: what they list exists, and what exists is listed."""

import re
from pathlib import Path

import attrs
import pytest
from dsparkd.models.noise import TEST_VECTORS
from dsparkd.scheduler.service.config import Settings
from dsparkd.scheduler.wire.messages import RequestOptions

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def first_column(page: str) -> dict[str, list[str]]:
    """The rows of a page's tables by their first cell, without code marks."""
    rows = {}
    for line in (DOCS / page).read_text().splitlines():
        if line.startswith("| "):
            cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
            rows[cells[0]] = cells
    return rows


def test_every_setting_is_documented_with_its_default() -> None:
    rows = first_column("configuration.md")
    for field in attrs.fields(Settings):
        assert field.name in rows
        if field.default not in (attrs.NOTHING, None):
            assert rows[field.name][1] == str(field.default).replace("True", "true").replace("False", "false")
    assert set(rows) - {"key", "---"} == {field.name for field in attrs.fields(Settings)}


def test_every_request_option_is_documented() -> None:
    assert set(RequestOptions.__struct_fields__) <= set(first_column("batch.md"))


def test_every_noise_vector_is_on_the_page() -> None:
    text = (DOCS / "sampling.md").read_text()
    for vector in TEST_VECTORS:
        assert "| " + " | ".join(map(repr, vector)) + " |" in text


def existing_tests() -> set[str]:
    return {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }


@pytest.mark.parametrize("page", ["invariants.md", "hazards.md"])
def test_every_property_and_hazard_names_tests_that_exist(page: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", (DOCS / page).read_text()))
    assert named
    assert named <= existing_tests()


def test_every_fault_names_tests_that_exist_and_every_numbered_test_is_listed() -> None:
    existing = existing_tests()
    named = set(re.findall(r"`(test_\w+)`", (DOCS / "faults.md").read_text()))
    assert named <= existing
    assert {name for name in existing if re.match(r"test_l\d{3}_", name)} <= named


@pytest.mark.parametrize("page", ["README.md", *[f"docs/{path.name}" for path in DOCS.glob("*.md")]])
def test_every_link_between_pages_leads_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_readme_shows_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text

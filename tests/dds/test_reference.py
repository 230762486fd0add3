"""The documents' tables of policies, statuses and names.

Goal: they say what the code says, and no name of cyclonedds-python is missing without a reason.
Method: makes them again, and compares; asks the table of policies about every policy of DDS 1.4.
"""

import importlib.util
from pathlib import Path

import pytest

from dds.policy.classes import Policy
from dds.policy.table import ENTITIES, TABLE, scopes_at

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("dds_reference", ROOT / "tools" / "dds_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("document", ["docs/qos.md", "docs/dds.md"])
def test_documents_have_the_tables_of_the_code(reference, document):
    text = (ROOT / document).read_text(encoding="utf-8")
    assert reference.with_tables(text, document) == text, "run `make reference`"


def test_a_document_without_a_place_for_its_table(reference):
    with pytest.raises(ValueError, match="no place for the table"):
        reference.with_tables("", "docs/qos.md")


def test_no_name_is_missing_without_a_reason(reference):
    assert reference.missing() == []
    assert reference.is_here("core.Qos") and not reference.is_here("core.NoSuchThing")


def test_each_policy_has_one_row():
    scopes = [row.scope for row in TABLE]
    assert len(set(scopes)) == len(scopes)
    assert set(scopes) == {name for name in vars(Policy) if not name.startswith("_")}
    numbers = [row.number for row in TABLE if row.number]
    assert len(set(numbers)) == len(numbers)
    for row in TABLE:
        assert row.entities and set(row.entities) <= set(ENTITIES)
        assert row.inherited in ("", "topic", "group") and row.told_with in ("", "topic", "group")
        assert row.meaning and not row.meaning.endswith(".")
        assert all(row.scope in scopes_at(entity) for entity in row.entities)

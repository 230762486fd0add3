"""Goal: what runs make small is what nodes go by: constants that are there, and used where they are. One that has moved
to another module would end every run, or turn nothing."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

from spindle_lab.whole.knobs import KNOBS, LATER


@pytest.mark.parametrize(("where", "name"), [(where, name) for where, name, _ in (*KNOBS, *LATER)])
def test_a_knob_is_where_it_is_used(where: str, name: str) -> None:
    module = importlib.import_module(where)
    assert hasattr(module, name)
    assert len(re.findall(rf"\b{name}\b", inspect.getsource(module))) > 1, f"nothing in {where} goes by it"

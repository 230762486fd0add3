"""Goal: a class says by annotations what can be called; what can't is refused where the class stands, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from dds.rpc import oneway, raises, service
from dds.rpc.interface import Thrown
from dds.rpc.service import service_of


def interface(cls: type):
    return service_of(service(cls)).interface


def test_public_methods_are_operations() -> None:
    class Good:
        def add(self, a: int, b: int = 2, *, scale: float = 1.0) -> int:
            return int((a + b) * scale)

        def _private(self, anything):
            return anything

    one = interface(Good).operations
    assert list(one) == ["add"]
    add = one["add"]
    assert list(add.bind((1,), {})) == [1, 2, 1.0] and list(add.bind((1,), {"scale": 2.0})) == [1, 2, 2.0]
    assert add.call(Good(), [1, 2, 2.0]) == 6
    for arguments, keywords in (((), {}), ((1, 2, 3), {}), ((1,), {"c": 1})):
        with pytest.raises(TypeError, match="add"):
            add.bind(arguments, keywords)


def no_type(self, a) -> int: ...
def no_result(self, a: int): ...
def any_number(self, *a: int) -> int: ...
def close(self) -> None: ...


@oneway
def oneway_result(self) -> int: ...


@pytest.mark.parametrize("method", [no_type, no_result, any_number, close, oneway_result])
def test_what_cannot_be_called_is_refused(method: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match=method.__name__):
        service(type("Bad", (), {method.__name__: method}))


def test_a_type_that_cannot_be_sent_is_refused_when_it_is_used() -> None:
    class Bad:
        def put(self, one: object) -> None: ...

    with pytest.raises(TypeError, match="put: one"):
        interface(Bad).check()


def test_a_class_without_operations_is_no_service() -> None:
    with pytest.raises(TypeError, match="no public method"):
        service(type("Empty", (), {}))
    with pytest.raises(TypeError, match=r"dds\.rpc\.service"):
        service_of(int)


def test_signatures_follow_from_types_alone() -> None:
    """Goal: another class with the same method can be called; one with other types can't."""
    class One:
        def get(self, name: str) -> int: ...

    class Same:
        def get(self, name: str, /) -> int:
            """Whatever it says."""

    class Other:
        def get(self, name: str) -> float: ...

    one, same, other = (interface(cls).operations["get"].signature for cls in (One, Same, Other))
    assert one == same != other


@dataclass
class Short(Exception):
    litres: float
    tank: str = "left"


class Bare(Exception):
    def __init__(self) -> None:
        super().__init__()


@pytest.mark.parametrize(("error", "arrives"), [
    (Short(2.5, "right"), Short(2.5, "right")), (KeyError("name"), KeyError("name")),
    (ValueError("no", 3), ValueError("('no', 3)")), (Bare(), Bare())])
def test_exceptions_cross(error: Exception, arrives: Exception) -> None:
    thrown = Thrown(type(error))
    back = thrown.decode(thrown.encode(error))
    assert type(back) is type(arrives) and (back == arrives or back.args == arrives.args)


def test_an_exception_that_cannot_be_made_again_says_so() -> None:
    with pytest.raises(ValueError, match="Bare"):
        Thrown(Bare).decode(b"text")


def test_the_nearest_declared_class_is_taken() -> None:
    class Good:
        @raises(LookupError)
        def get(self) -> None: ...

        def other(self) -> None: ...

    one = interface(Good)
    get, other = one.operations["get"], one.operations["other"]
    found = one.thrown_by(get, KeyError("x"))
    assert found is not None and found.cls is LookupError
    assert one.thrown_by(other, KeyError("x")) is None and one.thrown_by(get, ValueError()) is None
    with pytest.raises(TypeError, match="no class of exceptions"):
        raises(int)  # type: ignore[arg-type]

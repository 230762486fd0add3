"""What a service or a replicated object can do, as its class says by annotations.

    @service
    class Calculator:
        def add(self, a: int, b: int) -> int:
            return a + b

        @raises(ZeroDivisionError)
        def divide(self, a: float, b: float) -> float:
            return a / b

        @oneway
        def log(self, text: str) -> None: ...

Every public method is an operation; its parameters and its result have types of `dds.rpc.values`. A client needs the
class only for these descriptions; a server may have a subclass that does the work.

Rules: two programs understand each other in an operation if its name and the types of its parameters and result are
the same in both; what else their classes have need not be.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TypeVar

from dds.rpc.errors import InvalidArguments
from dds.rpc.values import Fields, Value

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Value])

NAME_MAX = 200  # bytes of the name of an operation or an exception


class Operation:
    """One method of an interface.

    name        of the method
    parameters  their names
    oneway      nobody waits for it; it has no result
    is_async    it is a coroutine function
    raises      exceptions that arrive as themselves
    mark        what a decorator of another package has said of it, None = nothing
    """

    def __init__(self, function: Callable[..., Value], scope: Mapping[str, Value], raises: Sequence[type[Exception]]
                 ) -> None:
        """Raises TypeError for parameters without a type, and for * and **."""
        self.name = function.__name__
        self.oneway: bool = getattr(function, "__rpc_oneway__", False)
        self.is_async = inspect.iscoroutinefunction(function)
        self.raises = (*getattr(function, "__rpc_raises__", ()), *raises)
        self.mark: str | None = getattr(function, "__rpc_mark__", None)
        self.__doc__ = function.__doc__
        self._function = function
        self._scope = scope
        signature = inspect.signature(function)
        _, *parameters = signature.parameters.values()
        for one in parameters:
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                raise TypeError(f"{self._where}: an operation has no *{one.name}: name its parameters")
            if one.annotation is one.empty:
                raise TypeError(f"{self._where}: parameter {one.name!r} needs a type")
        if signature.return_annotation is signature.empty:
            raise TypeError(f"{self._where}: say what it returns: `-> None` if nothing")
        if self.oneway and signature.return_annotation not in (None, "None"):
            raise TypeError(f"{self._where}: a one-way operation returns None")
        self._signature = signature.replace(parameters=parameters)
        self.parameters = tuple(one.name for one in parameters)
        self._positional = all(one.kind is not one.KEYWORD_ONLY for one in parameters)

    @property
    def _where(self) -> str:
        return self._function.__qualname__

    @functools.cached_property
    def _hints(self) -> dict[str, Value]:
        try:
            return typing.get_type_hints(self._function, None, dict(self._scope), include_extras=True)
        except NameError as error:
            raise TypeError(f"{self._where}: {error}: a type must be known where the class is") from error

    @functools.cached_property
    def arguments(self) -> Fields:
        """The types of the parameters. Raises TypeError if one can't be sent."""
        return Fields(self.name, {name: self._hints[name] for name in self.parameters})

    @functools.cached_property
    def result(self) -> Fields:
        """The type of the result: one field, or none. Raises TypeError if it can't be sent."""
        hint = self._hints["return"]
        return Fields(f"{self.name}_result", {} if hint in (None, type(None)) else {"result": hint})

    @functools.cached_property
    def signature(self) -> bytes:
        """16 bytes that differ where the types do."""
        return self.arguments.signature + self.result.signature

    def describe(self) -> str:
        """As in a program, with the types themselves: add(a: int, b: int) -> int."""
        try:
            hints = {name: None if hint is type(None) else hint for name, hint in self._hints.items()}
        except TypeError:  # a type that isn't known
            return f"{self.name}{self._signature}"
        parameters = [one.replace(annotation=hints[one.name]) for one in self._signature.parameters.values()]
        return f"{self.name}{self._signature.replace(parameters=parameters, return_annotation=hints['return'])}"

    def bind(self, arguments: tuple[Value, ...], keywords: Mapping[str, Value]) -> Sequence[Value]:
        """All arguments in order, with defaults. TypeError as calling the method would raise."""
        if not keywords and len(arguments) == len(self.parameters) and self._positional:
            return arguments
        try:
            bound = self._signature.bind(*arguments, **keywords)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None
        bound.apply_defaults()
        return [bound.arguments[name] for name in self.parameters]

    def encode(self, arguments: tuple[Value, ...], keywords: Mapping[str, Value]) -> bytes:
        """All arguments as they are sent. TypeError as bind(), InvalidArguments for values that aren't of the types."""
        values = self.bind(arguments, keywords)
        try:
            return self.arguments.encode(values)
        except (TypeError, ValueError) as error:
            raise InvalidArguments(f"{self.describe()}: {error}") from None

    def encode_result(self, value: Value) -> bytes:
        """TypeError for a result that isn't of the type that is said."""
        if not self.result.names:
            if value is not None:
                raise TypeError(f"{self.name}() is said to return None, and returned {value!r:.200}")
            return b""
        return self.result.encode((value,))

    def decode_result(self, data: bytes) -> Value:
        """ValueError for bytes that are no such result."""
        values = self.result.decode(data)
        return values[0] if values else None

    def call(self, target: object, values: Sequence[Value]) -> Value:
        """Do it."""
        method = getattr(target, self.name)
        if self._positional:
            return method(*values)
        return method(**dict(zip(self.parameters, values, strict=True)))


class Thrown:
    """How an exception crosses: those that are dataclasses with their fields, others with their text."""

    def __init__(self, cls: type[Exception]) -> None:
        self.cls = cls
        self.name = cls.__name__
        self._fields: Fields | None = None
        if dataclasses.is_dataclass(cls):
            hints = typing.get_type_hints(cls, include_extras=True)
            names = [one.name for one in dataclasses.fields(cls) if one.init]
            self._fields = Fields(self.name, {name: hints[name] for name in names})

    def encode(self, error: Exception) -> bytes:
        """TypeError for fields of other types."""
        if self._fields is not None:
            return self._fields.encode([getattr(error, name) for name in self._fields.names])
        return text_of(error).encode("utf-8", "replace")

    def decode(self, data: bytes) -> Exception:
        """ValueError for what encode() doesn't make."""
        if self._fields is not None:
            return self.cls(*self._fields.decode(data))
        text = data.decode()
        try:
            return self.cls(text) if text else self.cls()
        except TypeError as error:
            raise ValueError(f"{self.name} can't be made of a text: {error}") from error


def text_of(error: BaseException) -> str:
    """What it says, fit for a log or a message: half a surrogate pair is spelled out; of a KeyError without the
    quotes."""
    if len(error.args) == 1 and isinstance(error.args[0], str):
        text = error.args[0]
    else:
        try:
            text = str(error)
        except Exception as why:
            return f"(its text can't be made: {type(why).__name__})"
    return text.encode("utf-8", "backslashreplace").decode()


class Interface:
    """All operations of a class.

    name        of the service
    operations  by name
    """

    def __init__(self, cls: type, name: str, operations: dict[str, Operation]) -> None:
        self.cls = cls
        self.name = name
        self.operations = operations

    @functools.cached_property
    def thrown(self) -> dict[str, Thrown]:
        """The exceptions that any of its operations declares, by name."""
        declared = {cls for one in self.operations.values() for cls in one.raises}
        return {cls.__name__: Thrown(cls) for cls in declared}

    def check(self) -> None:
        """Look at all types now. TypeError for one that can't be sent."""
        for one in self.operations.values():
            _ = one.signature
        _ = self.thrown

    def thrown_by(self, operation: Operation, error: Exception) -> Thrown | None:
        """How `error` crosses as itself; None if the operation doesn't declare it."""
        for cls in type(error).__mro__:
            if cls in operation.raises:
                return self.thrown[cls.__name__]
        return None


def describe(cls: type, name: str, reserved: frozenset[str], raises: Sequence[type[Exception]],
             scope: Mapping[str, Value], marked: bool = False) -> Interface:
    """The interface of a class: all its public methods, or only those that are `marked`.

    Raises TypeError for a method without types, or with a name that is `reserved`.
    """
    operations: dict[str, Operation] = {}
    for method, function in inspect.getmembers(cls, inspect.isfunction):
        if method.startswith("_") or (marked and not hasattr(function, "__rpc_mark__")):
            continue
        if method in reserved:
            raise TypeError(f"{cls.__name__}.{method}: clients have a method of that name: choose another one")
        if len(method.encode()) > NAME_MAX:
            raise TypeError(f"{cls.__name__}.{method}: a name has at most {NAME_MAX} bytes")
        operations[method] = Operation(function, scope, raises)
    if not operations:
        raise TypeError(f"{cls.__name__} has no public method with types, so nothing could be called")
    names = [one.__name__ for one in {cls for op in operations.values() for cls in op.raises}]
    if len(names) != len(set(names)):
        raise TypeError(f"{cls.__name__}: two of the exceptions that it declares have the same name")
    return Interface(cls, name, operations)


def interface_of(cls: type, attribute: str, decorator: str) -> Interface:
    """What a decorator has left at a class or one of its bases. TypeError if none has."""
    found = getattr(cls, attribute, None)
    if not isinstance(found, Interface):
        raise TypeError(f"{cls!r} is not described: decorate the class with {decorator}")
    return found


def caller_scope(depth: int) -> dict[str, Value]:
    """The types and modules that are known where a class stands, for annotations of a class in a function."""
    found = sys._getframe(depth + 1).f_locals
    return {name: one for name, one in found.items() if isinstance(one, (type, ModuleType)) or (
        type(one).__module__.partition(".")[0] in ("typing", "types", "cyclonedds_idl"))}


def oneway(function: F) -> F:
    """Of an operation: the caller doesn't wait, and never hears what became of it."""
    function.__rpc_oneway__ = True  # type: ignore[attr-defined]
    return function


def raises(*errors: type[Exception]) -> Callable[[F], F]:
    """Of an operation: these exceptions, and those derived from them, arrive as themselves.

    One that is a dataclass crosses with its fields; any other with its text, from which it is made again.
    TypeError for what is no class of exceptions.
    """
    for one in errors:
        if not (isinstance(one, type) and issubclass(one, Exception)):
            raise TypeError(f"{one!r} is no class of exceptions")

    def mark(function: F) -> F:
        function.__rpc_raises__ = (*getattr(function, "__rpc_raises__", ()), *errors)  # type: ignore[attr-defined]
        return function

    return mark


__all__ = ["Interface", "Operation", "describe", "interface_of", "oneway", "raises"]

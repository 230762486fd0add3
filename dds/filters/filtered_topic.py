"""ContentFilteredTopic: a topic as one kind of reader wants to see it. DDS 1.4, 2.2.2.3.3."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from dds.entity import Participant
from dds.exceptions import DDSException
from dds.filters.expression import BoundExpression, Expression
from dds.filters.syntax import ExpressionError
from dds.topic import Topic

T = TypeVar("T")


class ContentFilteredTopic(Generic[T]):
    """The samples of `related_topic` for which an expression is true; for readers, which take it in place of a Topic.

        high = ContentFilteredTopic(participant, "high", topic, "altitude > %0", [10_000])
        reader = DataReader(participant, high)

    name                   to tell it by; it exists in this program only
    filter_expression      see `dds.filters.syntax`; "" = all samples
    expression_parameters  values of %0, %1, ...: Python values, or str as DDS has them, text in quotes
    Raises TypeError for wrong arguments, DDSException (BAD_PARAMETER) for an expression that is none or doesn't fit the
    type, or for parameters that don't fit the expression.
    """

    def __init__(self, domain_participant: Participant, name: str, related_topic: Topic[T], filter_expression: str,
                 expression_parameters: Sequence[Any] = ()) -> None:
        if not isinstance(domain_participant, Participant):
            raise TypeError(f"a ContentFilteredTopic is made in a DomainParticipant, not in {domain_participant!r}")
        if not isinstance(related_topic, Topic):
            raise TypeError(f"related_topic must be a Topic, not {related_topic!r}")
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, not {name!r}")
        if related_topic.participant is not domain_participant:
            raise DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER,
                               f"{related_topic!r} belongs to another participant than the one given")
        self._participant = domain_participant
        self._name = name
        self._topic = related_topic
        self._parameters = parameters_of(expression_parameters)
        self._expression, self._bound = bound_expression(
            filter_expression, related_topic._codec, self._parameters, "filter expression")
        if self._expression.has_order:
            raise DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER,
                               "a filter expression can't have ORDER BY, because samples come in the order of the "
                               "topic; a QueryCondition can")
        self._lock = threading.Lock()

    # What readers ask, as `dds.filters.content.Content`: always with the present parameters.

    def of_payload(self, payload: bytes) -> bool | None:
        """Whether the sample with this payload passes; None if only the sample itself can tell."""
        return self._bound.of_payload(payload)

    def of_sample(self, sample: T) -> bool:
        """Whether `sample` passes. Raises Undecided."""
        return self._bound.of_sample(sample)

    # What programs ask.

    def get_related_topic(self) -> Topic[T]:
        return self._topic

    def get_filter_expression(self) -> str:
        return self._expression.text

    def get_expression_parameters(self) -> list[Any]:
        return list(self._parameters)

    def set_expression_parameters(self, parameters: Sequence[Any]) -> None:
        """Change the parameters, also for readers that exist: what they look at from now on goes by the new ones, also
        what has come and waits for them.

        Raises DDSException (BAD_PARAMETER) if they don't fit; nothing changes then.
        """
        given = parameters_of(parameters)
        with self._lock:
            self._bound = bind(self._expression, given, "filter expression")
            self._parameters = given

    def get_participant(self) -> Participant:
        return self._participant

    def get_name(self) -> str:
        return self._name

    def get_type_name(self) -> str:
        return self._topic.typename

    related_topic = property(get_related_topic)
    filter_expression = property(get_filter_expression)
    expression_parameters = property(get_expression_parameters, set_expression_parameters)
    participant = property(get_participant)
    name = property(get_name)
    typename = property(get_type_name)

    @property
    def data_type(self) -> Any:
        return self._topic.data_type

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self._name!r}: {self._expression.text!r}>"


def parameters_of(given: Sequence[Any]) -> tuple[Any, ...]:
    """What a program gave as parameters, as a tuple. Raises TypeError."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"parameters must be a list, not {given!r}")
    return tuple(given)


def bound_expression(text: str, codec: Any, parameters: Sequence[Any], what: str) -> tuple[Expression, BoundExpression]:
    """The expression for samples of `codec`, and it with its parameters. Raises TypeError, DDSException."""
    try:
        expression = Expression(text, codec)
    except ExpressionError as error:
        raise DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER, f"the {what} can't be used: {error}") from None
    return expression, bind(expression, parameters, what)


def bind(expression: Expression, parameters: Sequence[Any], what: str) -> BoundExpression:
    try:
        return expression.bind(parameters)
    except ExpressionError as error:
        raise DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER,
                           f"the parameters of the {what} can't be used: {error}") from None


__all__ = ["ContentFilteredTopic"]

"""Publishes a greeting ten times."""

from dataclasses import dataclass

import dds
from dds.idl import IdlStruct


@dataclass
class Hello(IdlStruct):
    number: int
    text: str


participant = dds.DomainParticipant()
writer = dds.DataWriter(participant, dds.Topic(participant, "hello", Hello))
for number in range(10):
    writer.write(Hello(number, "good morning"))

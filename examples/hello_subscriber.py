"""Prints greetings for half a minute, in the same order as every other subscriber."""

from dataclasses import dataclass

import dds
from dds.idl import IdlStruct


@dataclass
class Hello(IdlStruct):
    number: int
    text: str


participant = dds.DomainParticipant()
reader = dds.DataReader(participant, dds.Topic(participant, "hello", Hello))
for hello in reader.take_iter(timeout=dds.duration(seconds=30)):
    print(hello.number, hello.text)

"""Names and imports.

Goal: the layout of cyclonedds-python; a fast import that brings nothing heavy along; clear errors for what isn't there.
Method: modules are imported in fresh processes.
"""

import importlib
import json
import subprocess
import sys

import pytest

import dds

# That a bare interpreter hasn't; 105 of them our own. Later Pythons have cut their library into more modules.
MODULES_MAX = {12: 175, 13: 177, 14: 180}.get(sys.version_info.minor, 174)

NAMES = {
    "core": ["DDSException", "Entity", "Listener", "WaitSet", "ReadCondition", "QueryCondition", "GuardCondition",
             "SampleState", "ViewState", "InstanceState", "DDSStatus", "Qos", "Policy", "Statistics"],
    "domain": ["Domain", "DomainParticipant"], "topic": ["Topic"], "pub": ["Publisher", "DataWriter"],
    "sub": ["Subscriber", "DataReader"], "util": ["duration", "timestamp", "isgoodentity"],
    "qos": ["Qos", "Policy", "LimitedScopeQos", "DomainParticipantQos", "TopicQos", "PublisherQos", "SubscriberQos",
            "DataWriterQos", "DataReaderQos"],
    "internal": ["SampleInfo", "InvalidSample", "dds_infinity"],
    "idl": ["IdlStruct", "IdlUnion", "IdlEnum", "IdlBitmask", "make_idl_struct", "make_idl_union", "make_idl_enum",
            "make_idl_bitmask"],
    "idl.annotations": ["key", "keylist", "final", "appendable", "mutable", "autoid", "member_id", "position",
                        "default_literal", "nested", "must_understand", "xcdrv2", "cdrv0", "bit_bound", "external",
                        "extensibility", "member_hash_id", "member_name"],
    "idl.types": ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
                  "char", "wchar", "byte", "sequence", "array", "bounded_str", "typedef", "case", "default",
                  "NoneType"],
    "builtin": ["BuiltinDataReader", "BuiltinTopicDcpsParticipant", "BuiltinTopicDcpsTopic",
                "BuiltinTopicDcpsPublication", "BuiltinTopicDcpsSubscription", "DcpsEndpoint", "DcpsParticipant"],
    "builtin_types": ["DcpsParticipant", "DcpsTopic", "DcpsEndpoint"],
}


@pytest.mark.parametrize("module", NAMES)
def test_names_are_where_programs_look_for_them(module):
    found = importlib.import_module(f"dds.{module}")
    for name in NAMES[module]:
        assert hasattr(found, name), name


def test_usual_names_from_the_package_itself():
    for name in dds.__all__:
        assert getattr(dds, name) is not None


def test_types_are_those_of_the_library():
    import cyclonedds_idl

    import dds.idl.annotations
    import dds.idl.types

    assert dds.idl.IdlStruct is cyclonedds_idl.IdlStruct
    assert dds.idl.types.int32 is cyclonedds_idl.types.int32
    assert dds.idl.annotations.key is cyclonedds_idl.annotations.key


@pytest.mark.parametrize("module", ["log", "tools"])
def test_modules_that_are_not_there_say_so(module):
    with pytest.raises(ImportError, match=f"Spindle has no dds.{module}"):
        importlib.import_module(f"dds.{module}")


def test_builtin_readers_are_had_from_here_too():
    import dds.builtin

    assert dds.BuiltinDataReader is dds.builtin.BuiltinDataReader


@pytest.mark.parametrize(("module", "name"), [
    ("dds.core", "QueryWhatever"),
    ("dds.internal", "dds_c_t"), ("dds", "nonsense")])
def test_names_that_are_not_there_say_so(module, name):
    with pytest.raises(AttributeError, match=name):
        getattr(importlib.import_module(module), name)
    with pytest.raises(ImportError, match=name):
        exec(f"from {module} import {name}")


def test_the_import_brings_little_and_nothing_heavy():
    """How long it takes is measured by `spindle bench startup`; here is what makes it long, which is the same on every
    machine: how many modules come along, and which."""
    program = """
import json, sys
before = set(sys.modules)
import dds
import spindle.client
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    modules = json.loads(subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60).stdout)
    heavy = {"numpy", "asyncio", "google.protobuf", "cyclonedds_idl", "lark", "mcap", "rich", "uvloop", "click", "uuid"}
    assert not heavy & set(modules)
    assert len(modules) <= MODULES_MAX, modules

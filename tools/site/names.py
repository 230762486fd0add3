"""What names in docstrings and signatures lead to.

Why: a signature says `Session` or `dds.pub.DataWriter`, a docstring `take()`; the reference has each thing in one
place, mostly under its short name (`dds.DataWriter`). So a name is looked up by its last word.

Rules: a name of the house in a signature leads somewhere, or stands in INTERNAL; else the build fails. A dotted name in
a docstring must exist. What others define (Python, NumPy, protobuf) is shown without a link: the built site needs no
other host, and neither does its making.
"""

from __future__ import annotations

import builtins
import collections.abc
import importlib
import inspect
import re
import types
import typing
from typing import Any

from docstrings import converted
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

logger = logging.getLogger(__name__)

PACKAGES = ("dds", "spindle")

# Types in public signatures that programs never name: what they get from a call, or hand on as it is.
INTERNAL = {"ACondition", "AnnouncedType", "Counters", "Holder", "KeptEntry", "NodeConfig", "TypeIdentifier", "Way"}
# What the reference must have: all public names of these.
MODULES = ("dds", "dds.builtin", "dds.builtin_types", "dds.core", "dds.domain", "dds.dynamic", "dds.exceptions",
           "dds.idl", "dds.idl.annotations", "dds.idl.types", "dds.pub", "dds.qos", "dds.qos_provider",
           "dds.replicated", "dds.replicated.batteries", "dds.rpc", "dds.status", "dds.sub", "dds.topic", "dds.util",
           "spindle.client", "spindle.links")
NOT_FOR_PROGRAMS = {
    "dds.Batch.of_block", "dds.Batch.of_payloads", "dds.rpc.Server.pump_ended", "dds.rpc.Server.samples_came",
    "dds.rpc.Server.statuses_changed", "dds.rpc.Server.time_passed", "spindle.client.Session.is_within",
    "spindle.links.Links.new_end",
}
# Base classes under whose name signatures take what programs know by another.
SHOWN_AS = {"Participant": "dds.DomainParticipant", "dds.entity.Participant": "dds.DomainParticipant"}
# Base classes that carry only what is done inside: their own bases are shown.
BASES_INSIDE = {"BatchWay", "FastWay", "Participant", "ReaderByQos", "ReaderCore", "ReaderStatuses", "WriterCore",
                "WriterStatuses"}
EXTERNAL = {"Future", "NDArray", "Path", "np", "pb"}
TYPE_VARIABLE = re.compile(r"^_?[A-Z]$")


def setup(app: Sphinx) -> dict[str, Any]:
    from sphinx.domains.python import PythonDomain
    from sphinx.roles import XRefRole

    unalias_policies()
    app.add_role_to_domain("py", "spanned", XRefRole(warn_dangling=True))
    PythonDomain.object_types["class"].roles += ("spanned",)
    app.connect("autodoc-process-docstring", on_docstring)
    app.connect("missing-reference", on_missing)
    app.connect("autodoc-process-bases", on_bases)
    app.connect("autodoc-process-signature", on_signature)
    app.connect("doctree-read", on_page)
    app.connect("env-check-consistency", on_whole)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def unalias_policies() -> None:
    """Their names have their family's before them (`History.KeepLast`), by which Sphinx would take them for aliases."""
    from dds.policy.classes import BasePolicy, Policy

    for family in vars(Policy).values():
        for kind in vars(family).values() if inspect.isclass(family) else ():
            if inspect.isclass(kind) and issubclass(kind, BasePolicy):
                kind.__name__ = kind.__name__.rpartition(".")[2]


def on_docstring(app: Sphinx, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    more = policy_meaning(name) or callback_meaning(name)
    if more:
        lines[:] = [*lines, *([""] if lines else []), more]
    lines[:] = converted(lines)


def policy_meaning(name: str) -> str:
    """What the table of policies says of a policy: it is the same as in docs/qos.md, where its links lead."""
    from dds.policy.table import TABLE

    family = re.fullmatch(r"dds\.Policy\.(\w+)", name)
    said = next((row.meaning for row in TABLE if family and row.scope == family.group(1)), "")
    said = re.sub(r",? \[(?:above|below)\]\([^)]+\)", "", said)
    said = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", said)
    return said[:1].upper() + said[1:] + ("." if said and not said.endswith(".") else "")


def callback_meaning(name: str) -> str:
    """What the status of a callback tells, as the method says that reads it."""
    import dds
    from dds.listener import CALLBACKS

    callback = re.fullmatch(r"dds\.Listener\.(set_)?(on_\w+)", name)
    if not callback or callback.group(2) not in CALLBACKS:
        return ""
    if callback.group(1):
        return f"Give the callback `{callback.group(2)}`; None takes it away."
    getter = CALLBACKS[callback.group(2)][1]
    owners = (one for one in (dds.Topic, dds.DataWriter, dds.DataReader, dds.DomainParticipant) if hasattr(one, getter))
    owner = next(owners, None) if getter else None
    return (inspect.getdoc(getattr(owner, getter)) or "").split("\n\n")[0] if owner else "There are unread samples."


def on_signature(app: Sphinx, what: str, name: str, found: Any, options: Any, signature: str | None,
                 returned: str | None) -> tuple[str, str | None] | None:
    """A family of policies is a name space: it can't be called."""
    from dds.policy.classes import BasePolicy, Policy, _Family

    is_family = inspect.isclass(found) and (issubclass(found, _Family) or found is Policy)
    return ("", returned) if is_family and not issubclass(found, BasePolicy) else None


def on_bases(app: Sphinx, name: str, found: Any, options: Any, bases: list[Any]) -> None:
    shown: list[Any] = []
    for base in bases:
        shown += _bases(base) if _is_inside(base) else [base]
    bases[:] = list(dict.fromkeys(shown)) or [object]


def _is_inside(base: Any) -> bool:
    name = getattr(base, "__name__", "")
    return name.startswith("_") or name in BASES_INSIDE


def _bases(inside: type) -> list[type]:
    """Of a class that isn't shown the ones that are."""
    return [shown for one in inside.__bases__ if one is not object
            for shown in (_bases(one) if _is_inside(one) else [one])]


def on_page(app: Sphinx, page: nodes.document) -> None:
    """What others define is no reference: `Any` of a signature would be found as `SampleState.Any`."""
    for node in list(page.findall(nodes.paragraph)):
        if node.astext() == "Bases: object":
            node.parent.remove(node)
    for node in list(page.findall(pending_xref)):
        if node.get("refdomain") == "py" and node["reftype"] != "spanned" and not is_ours(node["reftarget"]):
            node.replace_self(node.children)


def on_missing(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element) -> nodes.Node | None:
    if node.get("refdomain") != "py":
        return None
    spanned = node["reftype"] == "spanned"
    target = node["reftarget"].removesuffix("()")
    place = lookup(env, target, node.get("py:class") or "")
    if place:
        domain = env.get_domain("py")
        entry = domain.objects[place]
        from sphinx.util.nodes import make_refnode

        return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, place)
    if spanned:
        if target.split(".")[0] in PACKAGES and "." in target and value_of(target) is None:
            logger.warning("a docstring names %s, which doesn't exist", target, location=node)
        return content
    if target.rpartition(".")[2] in INTERNAL:
        return content
    return None


def on_whole(app: Sphinx, env: BuildEnvironment) -> None:
    """Every public name is in the reference. What is left out is said in NOT_FOR_PROGRAMS."""
    there = {name for name, entry in env.get_domain("py").objects.items() if not entry.aliased}
    documented = {id(found) for name in there if (found := value_of(name)) is not None}
    for module in MODULES:
        names = getattr(importlib.import_module(module), "__all__", ())
        for name in names:
            found = value_of(f"{module}.{name}")
            if f"{module}.{name}" not in there and id(found) not in documented and name not in ("translate", "core"):
                logger.warning("%s.%s is public, and nowhere in the reference (docs/site/api)", module, name)
    for place in sorted(there):
        found = value_of(place)
        if not inspect.isclass(found) or found.__module__.split(".")[0] not in PACKAGES:
            continue
        for name, value in vars(found).items():
            is_method = callable(value) or isinstance(value, (property, classmethod, staticmethod))
            if is_method and not name.startswith("_") and f"{place}.{name}" not in there | NOT_FOR_PROGRAMS:
                logger.warning("%s.%s is public, and not in the reference", place, name)


def value_of(name: str) -> Any:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            found = getattr(found, part, None)
        return found
    return None


def lookup(env: BuildEnvironment, target: str, within: str) -> str:
    """The full name of what is documented by that name: of the class that the docstring belongs to, or by its last
    words. "" where that is nothing, or one of several."""
    objects = env.get_domain("py").objects
    target = SHOWN_AS.get(target, target)
    for name in (f"{within}.{target}", target):
        if name in objects:
            return name
    words = target.split(".")
    if words[0] in PACKAGES:
        words = words[1:]
    for count in range(len(words), 0, -1):
        ending = "." + ".".join(words[-count:])
        kinds = ("class", "exception", "function") if count == 1 else ("class", "exception", "function", "method",
                                                                      "property", "attribute", "data")
        found = {entry.node_id: name for name, entry in objects.items()
                 if name.endswith(ending) and entry.objtype in kinds and not entry.aliased}
        if len(found) == 1:
            return next(iter(found.values()))
    return ""


def is_ours(name: str) -> bool:
    """False of what Python or another package defines, and of type variables."""
    first, _, rest = name.partition(".")
    if rest:
        return first in PACKAGES and not TYPE_VARIABLE.match(rest.rpartition(".")[2])
    return not any(hasattr(one, name) for one in (builtins, typing, collections.abc, types)) and (
        name not in EXTERNAL and not TYPE_VARIABLE.match(name))

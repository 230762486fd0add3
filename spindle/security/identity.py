"""Who shows a certificate: a node, or an application on a host without one; and the three ways in which ends know
each other.

Why apart: whoever decides about rights (`spindle.security.access`), judges keys (`trust`) or explains a refusal
(`tls_errors`) speaks of these, and none of them has to know the others for it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from spindle.errors import AccessDenied

CERTIFICATES, SECRET, PLAIN = "certificates", "secret", "plain"
NODE, APPLICATION = "node", "application"

NODE_ID_MAX = 65535
_URI = re.compile(r"spindle:(?:node:([0-9]{1,5}|any)|application:([A-Za-z0-9._-]{1,64}))")


@dataclasses.dataclass(frozen=True)
class Identity:
    """Who the other end is, as its certificate says. `name` is empty if all it shows is that it has the secret."""

    name: str
    role: str  # NODE or APPLICATION
    node_ids: frozenset[int] | None = None  # which nodes may use it, None = any; of an application none

    def check_node(self, node_id: int) -> None:
        """Raises AccessDenied unless this node may use it."""
        if self.role != NODE:
            raise AccessDenied(f"{self} is an application's, so it can't be node {node_id}; make one for the node: "
                               "`spindle keys node`")
        if self.node_ids is not None and node_id not in self.node_ids:
            ids = ", ".join(str(one) for one in sorted(self.node_ids))
            raise AccessDenied(f"{self} is for node {ids}, not for node {node_id}; set [node] id to that, or make one "
                               f"for this node: `spindle keys node --id {node_id}`")

    @classmethod
    def of(cls, certificate: Mapping[str, Any]) -> Identity:
        """From what SSLObject.getpeercert() tells. Raises AccessDenied if it says nothing, or nonsense."""
        subject = dict(pair for part in certificate.get("subject", ()) for pair in part)
        name = "".join(one for one in subject.get("commonName", "")[:64] if one.isprintable()) or "without a name"
        uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
        said = [match for uri in uris if uri.startswith("spindle:") for match in [_URI.fullmatch(uri)]]
        roles = {match and (NODE if match[1] else APPLICATION) for match in said}
        ids = frozenset(int(match[1]) for match in said if match and match[1] and match[1] != "any")
        if roles == {NODE} and all(0 < one <= NODE_ID_MAX for one in ids):
            anybody = any(match and match[1] == "any" for match in said)
            return cls(name, NODE, None if anybody else ids)
        if roles == {APPLICATION}:
            return cls(next(match[2] for match in said if match), APPLICATION, frozenset())
        found = ", ".join(uris) or "none"
        raise AccessDenied(f"certificate {name!r} doesn't say for whom it is: among its names must be the URI "
                           f"spindle:node:ID, spindle:node:any or spindle:application:NAME (found: {found}); "
                           "`spindle keys` makes such ones")

    def __str__(self) -> str:
        return f"certificate {self.name!r}" if self.name else "shared secret"

"""Settings of the group that change while it runs: files of several versions, of which each life of a node reads one.

    M5  settings are those of one file, as a whole; in one group their version never goes back, every member of a view
        has the same, and in the end their version is at least that of every file that a member came with
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from spindle.node.changes import OPEN_CLAIM_SHARE
from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from spindle.group.settings import Settings
    from spindle.group.view import View
    from spindle.node.node import Node
    from spindle_lab.whole.world import World


@dataclasses.dataclass(frozen=True)
class File:
    """What one version of the configuration file says of the group."""

    version: int
    suspect_timeout_s: float
    contacts: tuple[str, ...]


class Agreed:
    """All files of a run, and what became of them."""

    def __init__(self, world: World, contacts: tuple[str, ...]) -> None:
        self.world = world
        timeout_s = world.setup.suspect_timeout_s
        # One host more or less each time. The last has the version of the one before and other values.
        fewer = contacts[:-1] if len(contacts) > 2 else contacts
        self.files = [File(1, timeout_s, contacts), File(2, 1.5 * timeout_s, fewer), File(3, 0.8 * timeout_s, contacts),
                      File(3, 2 * timeout_s, contacts)]
        self._versions: dict[int, dict[int, Settings]] = {}  # by group id and view id
        self._brought: dict[int, int] = {}  # by group id: the greatest version of somebody who became a member
        self._seen: dict[int, View] = {}  # by node id

    def draw(self) -> dict[str, Any]:
        """What the next life of some node reads."""
        # Nodes that begin with an older file of fewer contacts may be all of these contacts, and form a group of their
        # own while the others live on: docs/operations.md says so.
        newest = max(self._brought.values(), default=0)
        able = [one for one in self.files if one.version >= newest or set(one.contacts) >= set(self.files[0].contacts)]
        file = self.world.system.random.choice(able)
        said: dict[str, Any] = {"settings_version": file.version, "suspect_timeout_s": file.suspect_timeout_s}
        return {**said, "contacts": file.contacts} if file.contacts else said

    def serves(self, node: Node) -> None:
        """A node has become a member."""
        group_id = node.view().group_id
        version = node.config.settings_version
        if version != node._changes.view.settings.version:  # type: ignore[union-attr]
            self.world.met("a node with older settings learns the group's")
        elif version > self._brought.get(group_id, version):
            self.world.met("a node brings newer settings into its group")
        self._brought[group_id] = max(self._brought.get(group_id, 0), version)

    def look(self, node: Node) -> None:
        """After a pass of a node. Raises Violation."""
        view = node._view
        if view is None or self._seen.get(node.node_id) is view:
            return
        self._seen[node.node_id] = view
        settings, known = view.settings, self._versions.setdefault(view.group_id, {})
        if known.setdefault(view.view_id, settings) != settings:
            raise Violation("M5", f"node {node.node_id} has other settings in view {view.view_id} than others have: "
                                  f"{settings.differences(known[view.view_id])}")
        for one, other in known.items():
            if (one < view.view_id and other.version > settings.version) or (
                    other.version == settings.version and other != settings):
                raise Violation("M5", f"view {view.view_id} has {settings}, and view {one} has {other}")
        if File(settings.version, settings.suspect_timeout_s, settings.contacts) not in [
                File(one.version, one.suspect_timeout_s, tuple(sorted(one.contacts))) for one in self.files]:
            raise Violation("M5", f"no file has these settings of view {view.view_id}: {settings}")

    def behind(self) -> str:
        """Who doesn't go by the group's settings, if anybody."""
        for slot in self.world.nodes:
            if slot.attachments is None or not slot.serving:
                continue
            node = slot.attachments.node
            view = node._view
            if view is None:
                continue
            if view.settings.version < self._brought.get(view.group_id, 0):
                return f"node {slot.node_id} goes by version {view.settings.version} of the settings"
            if node._changes._open_claim_timeout_s != OPEN_CLAIM_SHARE * view.settings.suspect_timeout_s:
                return f"node {slot.node_id} goes by a timeout that is not that of version {view.settings.version}"
        return ""

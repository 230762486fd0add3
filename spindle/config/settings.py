"""The configuration of a node: every key, its meaning, its range, its default. Files are read by `loading`.

Why one table: a key that is documented in one place, checked in another and defaulted in a third is wrong in one of
them before long. Here each key is one field of `NodeConfig`, and the field carries all of it; the reference in
docs/configuration.md and the output of `spindle daemon --print-config` are made from the same fields
(`spindle.config.reference`), and a test holds them together.

Rules:
- `NodeConfig()` is a working configuration. Nothing has to be set.
- A `NodeConfig` that exists is valid: the checks run at construction, so also in `dataclasses.replace()`.
- An unknown key or an impossible value is a `ConfigError` that names the key, the limit and, for a typing error, the
  key that was probably meant. Nothing is ignored and nothing is silently corrected.
- Sizes are in bytes (in a file also "8 MiB"), times carry their unit in the name.
- This module is on the path of every start: it imports nothing that is slow.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spindle.config.keys import (
    GIB,
    KIB,
    MIB,
    Key,
    checked,
    parse_size,
    refusal,
    size_text,
    split_address,
)
from spindle.config.users import AccessRule, gid_of, uid_of, uid_of_name_or_number
from spindle.errors import ConfigError

__all__ = [
    "AccessRule",
    "Key",
    "NodeConfig",
    "default_runtime_dir",
    "fallback_runtime_dir",
    "parse_size",
    "size_text",
    "split_address",
]

EDGE_SOCKET = "edge.sock"  # in the domain's directory, beside those of nodes
# Of an edge: what else a file says is about a node.
EDGE_KEYS = {
    ("node", "domain"), ("node", "runtime_dir"), ("node", "name"), ("network", "certificate"), ("network", "key"),
    ("network", "authority"), ("network", "secret"), ("network", "plain"), ("access", "allow_uids"),
    ("access", "allow_gids"), ("access", "users"), ("limits", "max_apps"), ("limits", "max_apps_per_user"),
    ("limits", "handshake_timeout_s"), ("edge", "nodes"), ("log", "level"), ("log", "format")}
DOMAIN_MAX = 232  # as in DDS, whose ports end there
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("auto", "text", "json", "journal")
FSYNC_MODES = ("group", "never")
DROP_MODES = ("always", "when full")
RESTART_MODES = ("majority", "all", "any")
FORM_MODES = ("majority", "all", "alone")
VERBS = "verbs"
FABRICS = ("auto", "shm", "tcp", VERBS)


def default_runtime_dir() -> Path:
    """Where sockets are when nobody says: $SPINDLE_RUNTIME_DIR, $XDG_RUNTIME_DIR/spindle, /tmp/spindle-<uid>."""
    if own := os.environ.get("SPINDLE_RUNTIME_DIR"):
        return Path(own)
    return fallback_runtime_dir()


def fallback_runtime_dir() -> Path:
    """The same without $SPINDLE_RUNTIME_DIR: what every user of this machine finds by himself."""
    if xdg := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(xdg) / "spindle"
    return Path(f"/tmp/spindle-{os.getuid()}")


def _key(section: str, name: str, kind: str, text: str, default: Any, **more: Any) -> Any:
    key = Key(section, name, kind, text, **more)
    if callable(default):
        return dataclasses.field(default_factory=default, metadata={"key": key})
    return dataclasses.field(default=default, metadata={"key": key})


@dataclasses.dataclass(frozen=True)
class NodeConfig:
    """All settings of one node. Fields are flat; each knows its place in the TOML file (metadata["key"]).

    Raises ConfigError at construction if a value is impossible.
    """

    # [node]
    node_id: int = _key(
        "node", "id", "int", "Number of this node in its domain. Two nodes of one domain never share a number.",
        0, low=1, high=65535, zero="the lowest free number",
    )  # fmt: skip
    domain_id: int = _key(
        "node", "domain", "int", "DDS domain: nodes and applications of different domains never see each other.",
        0, low=0, high=DOMAIN_MAX,
    )  # fmt: skip
    runtime_dir: Path = _key(  # noqa: RUF009 (a field like the others)
        "node", "runtime_dir", "path",
        "Directory of the Unix sockets by which nodes and applications of this host find each other. Not set: "
        "`$SPINDLE_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/spindle`, else `/tmp/spindle-<uid>`.",
        default_runtime_dir, example='"/run/spindle"',
    )  # fmt: skip
    name: str = _key(
        "node", "name", "str", "A name for listings and log lines. Empty: host name and process id.", "",
    )  # fmt: skip
    # [membership]
    join_timeout_s: float = _key(
        "membership", "join_timeout_s", "float",
        "How long a starting node tries to join the group of its domain before it gives up.",
        10.0, unit="s", low=0.1, high=3600,
    )  # fmt: skip
    suspect_timeout_s: float = _key(
        "membership", "suspect_timeout_s", "float",
        "How long a member may give no sign of life before the others go on without it. Only for members that hang: "
        "a process that ends is noticed at once. Longer than any pause that is normal on this host. That of the "
        "group counts, see `settings_version`.",
        2.0, unit="s", low=0.05, high=60,
    )  # fmt: skip
    settings_version: int = _key(
        "membership", "settings_version", "int",
        "Of what the whole group goes by: `suspect_timeout_s` and, of [network], `contacts` and `form`. Raise it with "
        "each change: the first node that starts with a greater version than the group's brings its values in, and "
        "all go by them at once. A node with another version, or other values, learns the group's and logs them.",
        1, low=1, high=1 << 31,
    )  # fmt: skip
    rejoin: bool = _key(
        "membership", "rejoin", "bool",
        "A daemon whose node was cast out of its group, or found itself without a majority, starts a new node instead "
        "of ending with exit code 12 or 13. Its applications attach again.",
        False,
    )  # fmt: skip
    # [network]
    listen: str | None = _key(
        "network", "listen", "address",
        "Address at which nodes on other hosts reach this one. A port alone listens on 127.0.0.1. Not set: this node's "
        "group is on this host alone.",
        None, example='"0.0.0.0:7402"',
    )  # fmt: skip
    advertise: str = _key(
        "network", "advertise", "str",
        "host:port by which the others reach this node. Empty: that of `contacts` which is an address of this host, "
        "else what `listen` says, else the host's name.",
        "",
    )  # fmt: skip
    contacts: tuple[str, ...] = _key(
        "network", "contacts", "addresses",
        "Where a starting node asks for the group: the addresses of some or all nodes, the same list on each. One that "
        "answers as a member is enough to join; one that this node doesn't get on with (another program has its port, "
        "its keys are others) is a warning in the log. Empty: only nodes of this host are looked for.",
        (),
    )  # fmt: skip
    form: str = _key(
        "network", "form", "choice",
        "How many of `contacts` must be there before nodes that find no group form one and serve. "
        '"majority": two halves of a divided network never both form one. "all" holds that also while members have '
        'left. "alone": this node forms a group by itself; for one node of a site at most.',
        "majority", choices=FORM_MODES,
    )  # fmt: skip
    fabric: str = _key(
        "network", "fabric", "choice",
        'How messages reach another node. "auto": shared memory on one host, RDMA where both have it on one subnet, '
        'else TCP. "tcp" and "verbs" never use anything faster, "shm" nothing else.',
        "auto", choices=FABRICS,
    )  # fmt: skip
    certificate: Path | None = _key(  # noqa: RUF009 (a field like the others)
        "network", "certificate", "file",
        "Certificate of this node (PEM, with intermediate ones if there are any). `spindle keys` makes it.",
        None, example='"/etc/spindle/node-1.crt"',
    )  # fmt: skip
    certificate_key: Path | None = _key(  # noqa: RUF009 (a field like the others)
        "network", "key", "file", "Private key of the certificate (PEM, without a password).",
        None, example='"/etc/spindle/node-1.key"',
    )  # fmt: skip
    authority: Path | None = _key(  # noqa: RUF009 (a field like the others)
        "network", "authority", "file",
        "Certificates of the authorities (PEM) that sign those of nodes and of applications elsewhere.",
        None, example='"/etc/spindle/authority.crt"',
    )  # fmt: skip
    secret: Path | None = _key(  # noqa: RUF009 (a field like the others)
        "network", "secret", "file",
        "Instead of certificates: a file with a secret that all nodes share. `spindle keys secret` makes it.",
        None, example='"/etc/spindle/secret"',
    )  # fmt: skip
    plain: bool = _key(
        "network", "plain", "bool",
        "Talk to other hosts without any keys. Whoever reaches the port can then do everything; without this it is "
        "only done on loopback.", False,
    )  # fmt: skip
    encrypt: bool = _key(
        "network", "encrypt", "bool",
        "Encrypt messages between hosts as well, not only what nodes agree on. For TCP; the kernel does it (module "
        "`tls`). The same on all nodes.", False,
    )  # fmt: skip
    rdma_device: str = _key(
        "network", "rdma_device", "str", "RDMA device for `verbs`. Empty: the first one with an active port.", "",
    )  # fmt: skip
    # [core]
    busy_poll_us: int = _key(
        "core", "busy_poll_us", "int",
        "How long the predicate thread spins for more work before it sleeps on its doorbell. More lowers latency and "
        "costs CPU; 0 sleeps at once.",
        10, unit="us", low=0, high=1_000_000,
    )  # fmt: skip
    realtime_priority: int = _key(
        "core", "realtime_priority", "int",
        "Real-time priority (SCHED_RR) of a daemon's predicate thread while it mostly sleeps, and others use its core "
        "up: it then runs as soon as it is woken. Where the daemon may have that, as root, with CAP_SYS_NICE, or with "
        "`LimitRTPRIO=` in its unit; elsewhere it does with `nice`. 0: never. A node in a program has none.",
        1, low=0, high=99,
    )  # fmt: skip
    nice: int = _key(
        "core", "nice", "int",
        "Added to the nice value of the predicate thread while it mostly sleeps: it then runs soon after it is woken, "
        "beside busy programs too. Where the node may have that, as root, with CAP_SYS_NICE, or with `LimitNICE=` in "
        "its unit; elsewhere it does without. 0: never.",
        -10, low=-20, high=0,
    )  # fmt: skip
    batch_send: bool = _key(
        "core", "batch_send", "bool",
        "Publish all committed messages with one push. Off: one push a message, as in the paper's baseline.", True,
    )  # fmt: skip
    batch_receive: bool = _key(
        "core", "batch_receive", "bool",
        "Receive all new messages of a sender with one acknowledgement. Off: one acknowledgement a message.", True,
    )  # fmt: skip
    batch_delivery: bool = _key(
        "core", "batch_delivery", "bool",
        "Deliver everything up to the stability frontier with one push. Off: one push a message.", True,
    )  # fmt: skip
    null_sends: bool = _key(
        "core", "null_sends", "bool",
        "A sender that lags sends null messages, so that a silent sender never delays the others. Off: delivery waits "
        "for the slowest sender.", True,
    )  # fmt: skip
    post_after_unlock: bool = _key(
        "core", "post_after_unlock", "bool",
        "Post to the fabric after releasing the lock. Off: post while holding it.", True,
    )  # fmt: skip
    skip_idle: bool = _key(
        "core", "skip_idle", "bool",
        "Each pass of the predicate thread visits only topics in which something may have changed. Off: all of them, "
        "so that idle topics cost every pass some time.", True,
    )  # fmt: skip
    # [topics]
    default_size_max: int = _key(
        "topics", "size_max", "size", "Slots of a topic whose creator names no size. Larger messages go beside.",
        16 * KIB, unit="bytes", low=1, high=64 * MIB,
    )  # fmt: skip
    default_window: int = _key(
        "topics", "window", "int", "Slots in the ring of each sender.",
        0, unit="slots", low=2, high=65536, zero="chosen so that the rings stay in cache",
    )  # fmt: skip
    log_capacity: int = _key(
        "topics", "log_capacity", "size",
        "Memory of one topic's delivery log. Readers with history keep-last that fall behind by more lose samples; "
        "readers with keep-all make the writers wait.",
        8 * MIB, unit="bytes", low=64 * KIB, high=16 * GIB,
    )  # fmt: skip
    log_hot: int = _key(
        "topics", "log_hot", "size",
        "Part of the delivery log that is used while all readers keep up: small enough to stay in cache. At most "
        "`log_capacity`.",
        256 * KIB, unit="bytes", low=4 * KIB, high=16 * GIB,
    )  # fmt: skip
    large_capacity: int = _key(
        "topics", "large_capacity", "size",
        "Memory for one topic's large samples, those that don't fit its slots: so much that its writers here have on "
        "their way, and so much that its delivery log keeps. One that is larger has it alone. What these lay in is "
        "kept for the next ones for 5 s, up to twice as much.",
        256 * MIB, unit="bytes", low=MIB, high=1024 * GIB,
    )  # fmt: skip
    large_sample_max: int = _key(
        "topics", "large_sample_max", "size", "The largest sample that this node takes from a writer.",
        4 * GIB, unit="bytes", low=64 * KIB, high=4 * GIB,
    )  # fmt: skip
    inbox_slots: int = _key(
        "topics", "inbox_slots", "int", "Slots between one DataWriter and its node.",
        0, unit="slots", low=2, high=65536, zero="chosen from the topic's size_max",
    )  # fmt: skip
    # [journal]
    journal_dir: Path | None = _key(  # noqa: RUF009 (a field like the others)
        "journal", "dir", "path",
        "Directory of the MCAP files of logged topics. Not set: this node refuses readers and writers of logged "
        "topics.",
        None, example='"/var/lib/spindle"',
    )  # fmt: skip
    journal_fsync: str = _key(
        "journal", "fsync", "choice",
        '"group": a message counts as persisted after the fsync of its group commit. "never": the kernel writes when '
        "it likes; survives a crash of the process, not of the machine.",
        "group", choices=FSYNC_MODES,
    )  # fmt: skip
    journal_group_commit_ms: float = _key(
        "journal", "group_commit_ms", "float",
        "How long messages gather before they are written and synced together. 0 writes as soon as the last commit "
        "is done.",
        2.0, unit="ms", low=0, high=1000,
    )  # fmt: skip
    journal_max_file_size: int = _key(
        "journal", "max_file_size", "size", "A journal file that has grown to this size is closed and the next begun.",
        1 * GIB, unit="bytes", low=1 * MIB, high=1024 * GIB,
    )  # fmt: skip
    journal_keep_files: int = _key(
        "journal", "keep_files", "int",
        "How many closed files of each topic are kept; older ones are removed.", 0, unit="files", low=1, high=1_000_000,
        zero="all",
    )  # fmt: skip
    journal_keep_bytes: int = _key(
        "journal", "keep_bytes", "size",
        "How many bytes of closed files of each topic are kept; older ones are removed.", 0, unit="bytes", low=1 * MIB,
        high=1024 * 1024 * GIB, zero="all",
    )  # fmt: skip
    journal_keep_age_s: int = _key(
        "journal", "keep_age_s", "int",
        "How long messages are kept: closed files all of whose messages are older are removed.", 0, unit="s", low=1,
        high=10_000_000_000, zero="for ever",
    )  # fmt: skip
    journal_drop: str = _key(
        "journal", "drop", "choice",
        'When files go that the three keys above let go. "always": as soon as they may. "when full": only when the '
        "disk has less room than `free_min`.",
        "always", choices=DROP_MODES,
    )  # fmt: skip
    journal_free_min: int = _key(
        "journal", "free_min", "size",
        "Bytes that are to stay free on the disk of `dir`. When there are fewer, the node drops files that may go. If "
        "that doesn't help, it writes nothing more until there is room again: writers of logged topics time out with "
        "an error that says so, new ones are refused, and the node lives. 0 writes until the disk is full.",
        64 * MIB, unit="bytes", low=1 * MIB, high=1024 * GIB, zero="no mark",
    )  # fmt: skip
    journal_restart: str = _key(
        "journal", "restart", "choice",
        "How many of the nodes that held a logged topic last must be back before it goes on from their journals, when "
        'none of them has kept running. "majority": what writers were told is persisted is safe, unless most of them '
        'had been lost at once before. "all": it is safe then, too. "any": the topic goes on with what is there; the '
        "rest of a journal that comes back later and disagrees is moved beside.",
        "majority", choices=RESTART_MODES,
    )  # fmt: skip
    # [access]
    allow_uids: tuple[int, ...] = _key(
        "access", "allow_uids", "ints",
        "User ids that may attach, besides the node's own user, who always may.", (),
    )  # fmt: skip
    allow_gids: tuple[int, ...] = _key("access", "allow_gids", "ints", "Group ids whose members may attach.", ())
    allow_users: tuple[str, ...] = _key("access", "users", "strs", "User names that may attach.", ())
    node_users: tuple[str, ...] = _key(
        "access", "nodes", "strs",
        "Users of this host, by name or number, whose processes may be nodes of the group, besides this node's own "
        "user and root. Whoever may be a node may do everything that nodes do; nobody else may, whatever he may as an "
        "application.",
        (), example='["spindle"]',
    )  # fmt: skip
    access_rules: tuple[AccessRule, ...] = _key(
        "access", "rules", "rules",
        "Who may publish and subscribe what. Each rule names one `user`, `uid`, `group`, `gid` or `application` (of "
        "another host, as its certificate has it) and gives lists of topic globs, `publish` and `subscribe`. Without "
        "rules everybody who may attach may do everything. With rules a user may do what any rule about him allows, "
        "and nothing else; the node's own user, if no rule is about him, everything.",
        (), example='[{ user = "display", publish = [], subscribe = ["flight/*"] }]',
    )  # fmt: skip
    # [limits]
    max_apps: int = _key(
        "limits", "max_apps", "int", "Applications attached to this node at one time.",
        128, unit="applications", low=1, high=4096,
    )  # fmt: skip
    max_endpoints_per_app: int = _key(
        "limits", "max_endpoints_per_app", "int", "Readers and writers of one application, together.",
        1024, unit="endpoints", low=1, high=65536,
    )  # fmt: skip
    max_apps_per_user: int = _key(
        "limits", "max_apps_per_user", "int",
        "Applications of one user attached to this node at one time. This limit and the following ones are not for the "
        "node's own user, root and `[access] nodes`; an application of another host counts by its certificate's name.",
        96, unit="applications", low=1, high=4096,
    )  # fmt: skip
    max_endpoints_per_user: int = _key(
        "limits", "max_endpoints_per_user", "int", "Readers and writers of all applications of one user, together.",
        4096, unit="endpoints", low=1, high=65536,
    )  # fmt: skip
    max_links_per_user: int = _key(
        "limits", "max_links_per_user", "int",
        "Links of all programs of one user, together; a node has 4096 in all.",
        1024, unit="links", low=1, high=4096,
    )  # fmt: skip
    max_topics_per_user: int = _key(
        "limits", "max_topics_per_user", "int",
        "Topics that one user may declare at this node; a group has 255 in all.",
        64, unit="topics", low=1, high=255,
    )  # fmt: skip
    max_bytes_per_user: int = _key(
        "limits", "max_bytes_per_user", "size",
        "Memory of the rings of one user's topics (as declared at this node, for one sender each), of open writers, "
        "and of links and the regions offered.",
        2 * GIB, unit="bytes", low=1 * MIB, high=1024 * GIB,
    )  # fmt: skip
    max_changes_per_user_s: int = _key(
        "limits", "max_changes_per_user_s", "int",
        "Topics declared and readers and writers opened by one user at this node in a second, in the long run; what "
        "comes faster waits. Each may be a change of the group.",
        100, unit="a second", low=1, high=100_000,
    )  # fmt: skip
    frame_max: int = _key(
        "limits", "frame_max", "size",
        "Largest request that an application may send. Messages are none: they have the size of their topic.",
        64 * KIB, unit="bytes", low=4 * KIB, high=64 * MIB,
    )  # fmt: skip
    handshake_timeout_s: float = _key(
        "limits", "handshake_timeout_s", "float",
        "A connection that has not said who it is by then is closed; also the time a begun frame may take to arrive.",
        5.0, unit="s", low=0.05, high=300,
    )  # fmt: skip
    open_timeout_s: float = _key(
        "limits", "open_timeout_s", "float",
        "How long the group may take to agree when an application declares a topic or opens a reader or writer; then "
        "the application gets an error that says whom the group waits for.",
        15.0, unit="s", low=0.1, high=3600,
    )  # fmt: skip
    # [metrics]
    metrics_listen: str | None = _key(
        "metrics", "listen", "address",
        "Address of the Prometheus endpoint. A port alone listens on 127.0.0.1. Not set: no endpoint.",
        None, example='"127.0.0.1:9464"',
    )  # fmt: skip
    # [web]
    web_listen: str | None = _key(
        "web", "listen", "address",
        "Address of the cockpit, a page about the group for browsers, which needs `aiohttp`. A port alone listens "
        "on 127.0.0.1; elsewhere it takes certificate, key and authority of [network]. The address with its token is "
        "in `cockpit-<id>.url` beside the node's socket. Not set: no page.",
        None, example='"127.0.0.1:7480"',
    )  # fmt: skip
    web_actions: bool = _key(
        "web", "actions", "bool",
        "Whoever has the cockpit's token, or a node's certificate, may also act: cast nodes out, have them leave, "
        "delete and record topics. Off: the page only shows.",
        False,
    )  # fmt: skip
    web_hosts: tuple[str, ...] = _key(
        "web", "hosts", "strs",
        "Further names by which browsers may call the cockpit. Requests with another Host are refused.",
        (), example='["flightdeck.example"]',
    )  # fmt: skip
    web_recordings: Path | None = _key(  # noqa: RUF009 (a field like the others)
        "web", "recordings", "path",
        "Directory of recordings that are started from the cockpit. Not set: none can be.",
        None, example='"/var/lib/spindle/recordings"',
    )  # fmt: skip
    # [edge]
    edge_nodes: tuple[str, ...] = _key(
        "edge", "nodes", "addresses",
        "For a host that runs no node: the daemon is no node then but an edge, which brings the host's programs to the "
        "first of these nodes that serves, over one connection. Certificate and key of [network] are those of an "
        "application. Empty: the daemon is a node.",
        (),
    )  # fmt: skip
    # [log]
    log_level: str = _key("log", "level", "choice", "Least weight of the lines on stderr.", "info", choices=LOG_LEVELS)
    log_format: str = _key(
        "log", "format", "choice",
        'How a daemon logs. "text": lines on stderr. "json": one JSON object a line there. "journal": to systemd\'s '
        'journal, with fields. "auto": the journal if that is where stderr goes, else text.',
        "auto", choices=LOG_FORMATS,
    )  # fmt: skip

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            key: Key = field.metadata["key"]
            object.__setattr__(self, field.name, _checked(key, getattr(self, field.name)))
        if self.log_hot > self.log_capacity:
            raise ConfigError(
                f"[topics] log_hot = {size_text(self.log_hot)}: must not exceed log_capacity, which is "
                f"{size_text(self.log_capacity)}"
            )
        self._check_network()
        if self.edge_nodes:
            self._check_edge()
        if 2 * self.default_size_max > self.log_capacity:
            raise ConfigError(
                f"[topics] size_max = {size_text(self.default_size_max)}: a delivery log must hold at least two "
                f"messages, but log_capacity is {size_text(self.log_capacity)}; make log_capacity "
                f"{size_text(2 * self.default_size_max)} or more"
            )

    def _check_network(self) -> None:
        files = {"certificate": self.certificate, "key": self.certificate_key, "authority": self.authority}
        missing = [name for name, path in files.items() if path is None]
        if 0 < len(missing) < len(files):
            raise ConfigError(f"[network] {missing[0]}: must be set, too: certificate, key and authority go together")
        if self.secret is not None and not missing:
            raise ConfigError("[network] secret: certificates are set, too; choose one of both")
        if self.listen is None and self.fabric in ("auto", "shm") and self.contacts:
            raise ConfigError("[network] listen: must be set where contacts are, as the others have to reach this node")
        if self.encrypt and self.fabric == VERBS:
            raise ConfigError('[network] encrypt = true: RDMA devices do not encrypt; take fabric = "tcp" or "auto"')
        if self.contacts and not self.node_id:
            raise ConfigError("[node] id: must be set where [network] contacts are, another one on each node")
        if self.advertise and not 0 < split_address(self.advertise)[1] <= 65535:
            raise ConfigError(f'[network] advertise = "{self.advertise}": must be "host:port"')

    def _check_edge(self) -> None:
        for field in dataclasses.fields(self):
            key: Key = field.metadata["key"]
            usual = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            if (key.section, key.name) not in EDGE_KEYS and getattr(self, field.name) != usual:
                raise ConfigError(f"[{key.section}] {key.name}: makes no sense for an edge, which is no node; leave "
                                  "it out, or leave out [edge] nodes (--edge)")

    @property
    def agreed_settings(self) -> dict[str, str]:
        """What nodes tell each other when they connect, by name. `encrypt` must be alike on all nodes; while nodes look
        for their group also `form`, and `contacts` but for one host (see `spindle.transport.agreeing`)."""
        return {
            "[network] contacts": ", ".join(sorted(self.contacts)) or "none",
            "[network] form": self.form,
            "[network] encrypt": str(self.encrypt).lower(),
        }

    @property
    def domain_dir(self) -> Path:
        """Directory of this domain's sockets and locks."""
        return self.runtime_dir / f"domain-{self.domain_id}"

    @property
    def admits_others(self) -> bool:
        """True if users besides the node's own may attach, or be nodes: then the sockets' directory can't be
        private."""
        return bool(self.allow_uids or self.allow_gids or self.allow_users or self.node_users)

    def unknown_names(self) -> list[str]:
        """What [access] names that this host doesn't know now, as `[access] users: "display"`. Names are looked up
        whenever they are needed, so a user who is made later counts then."""
        found = [f'[access] users: "{name}"' for name in self.allow_users if uid_of(name) is None]
        found += [f'[access] nodes: "{name}"' for name in self.node_users if uid_of_name_or_number(name) is None]
        for rule in self.access_rules:
            if rule.user and uid_of(rule.user) is None:
                found.append(f'[[access.rules]] user: "{rule.user}"')
            if rule.group and gid_of(rule.group) is None:
                found.append(f'[[access.rules]] group: "{rule.group}"')
        return list(dict.fromkeys(found))

    def is_node_user(self, uid: int) -> bool:
        """True if a process of this user on this host may be a node of the group: the node's own user, root, and those
        named in [access] nodes. The right to attach as an application isn't enough."""
        return uid in (os.geteuid(), 0) or any(uid_of_name_or_number(user) == uid for user in self.node_users)

    @property
    def is_for_its_user_alone(self) -> bool:
        """No other user of this host may attach, or be a node, but root, who may do everything anyway."""
        return not self.allow_gids and not self.allow_users and not self.node_users and not (
            set(self.allow_uids) - {os.geteuid(), 0})

    def admits(self, uid: int, gids: Iterable[int]) -> bool:
        """True if a process with these credentials (of the socket's peer) may attach."""
        if uid == os.geteuid() or uid in self.allow_uids:
            return True
        if set(gids) & set(self.allow_gids):
            return True
        return any(uid_of(user) == uid for user in self.allow_users)

    def may_publish(self, uid: int, gids: Iterable[int], topic: str, application: str = "") -> bool:
        """True if an admitted user, or an application of another host, may open a writer of the topic."""
        return self._may("publish", uid, list(gids), topic, application)

    def may_subscribe(self, uid: int, gids: Iterable[int], topic: str, application: str = "") -> bool:
        """True if an admitted user, or an application of another host, may open a reader of the topic."""
        return self._may("subscribe", uid, list(gids), topic, application)

    def hides_nothing_from(self, uid: int, gids: Iterable[int]) -> bool:
        """True if there are no rules, or this is the node's own user and no rule is about him."""
        gids = list(gids)
        return not self.access_rules or (
            uid == os.geteuid() and not any(rule.matches(uid, gids) for rule in self.access_rules))

    def _may(self, what: str, uid: int, gids: list[int], topic: str, application: str) -> bool:
        if not self.access_rules:
            return True
        about_user = [rule for rule in self.access_rules if rule.matches(uid, gids, application)]
        if not about_user:
            return uid == os.geteuid()
        from fnmatch import fnmatchcase

        return any(fnmatchcase(topic, glob) for rule in about_user for glob in getattr(rule, what))


def _checked(key: Key, value: Any) -> Any:
    return _check_rules(key, value) if key.kind == "rules" else checked(key, value)


def _check_rules(key: Key, value: Any) -> tuple[AccessRule, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(rule, AccessRule) for rule in value):
        raise refusal(key, value)
    return tuple(value)

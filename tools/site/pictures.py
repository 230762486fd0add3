"""Make the pictures of the documents anew, from what programs really show: `make docs-pictures`.

    python tools/site/pictures.py [--install] [drawings] [terminals]

drawings   the drawings in the documents (mermaid), as browsers show them, in docs/pictures/drawings
terminals  `spindle demo`, `top`, `status` and `topics` at work, in docs/pictures

Why committed: making them takes a browser, npm and a group at work; reading or making the site takes none of these.

Needs Debian's chromium and npm for drawings, tmux for terminals; --install fetches what is missing, as root on Debian.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from drawn import FOLDER, ROOT, path_of, wanted

PICTURES = ROOT / "docs" / "pictures"
MERMAID = "mermaid@11.17.2"  # MIT; a later one draws somewhat differently
NEEDED = {"drawings": ("chromium", "npm"), "terminals": ("tmux",)}
CHROMIUM = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync")
# Liberation Sans has the measures of Arial and Helvetica: text takes the same room wherever one of them is.
FONT = "'Liberation Sans', Arial, Helvetica, sans-serif"
COLOURS = {
    "light": {"primaryColor": "#e8f1f8", "primaryBorderColor": "#5b8db1", "primaryTextColor": "#1a1a1a",
              "lineColor": "#52606d", "clusterBkg": "#f6f8fa", "clusterBorder": "#b8c4ce",
              "edgeLabelBackground": "#ffffff",
              "background": "#ffffff"},
    "dark": {"primaryColor": "#1f3342", "primaryBorderColor": "#5b9bc4", "primaryTextColor": "#e6e6e6",
             "lineColor": "#9fb0bd", "clusterBkg": "#191c1f", "clusterBorder": "#46525c",
             "edgeLabelBackground": "#131416",
             "background": "#131416", "darkMode": True},
}


def missing(parts: list[str]) -> list[str]:
    return [one for part in parts for one in NEEDED[part] if not shutil.which(one)]


def install(packages: list[str]) -> None:
    if os.geteuid() or not shutil.which("apt-get"):
        sys.exit(f"Needed, and not here: {', '.join(packages)}. As root on Debian, --install fetches them.")
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(["apt-get", "install", "-qq", "-y", "--no-install-recommends", *packages, "fonts-liberation"],
                   check=True, stdout=subprocess.DEVNULL)


# --- drawings


def drawings() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    pictures = wanted()
    for path in set(FOLDER.glob("*.svg")) - set(pictures):
        path.unlink()
    with tempfile.TemporaryDirectory() as place:
        script = fetch_mermaid(Path(place))
        for path, (text, theme) in pictures.items():
            path.write_text(drawn(text, theme, script, Path(place)), encoding="utf-8")
            print(path.relative_to(ROOT))


def fetch_mermaid(place: Path) -> Path:
    subprocess.run(["npm", "pack", "--silent", MERMAID], cwd=place, check=True, stdout=subprocess.DEVNULL)
    (archive,) = place.glob("mermaid-*.tgz")
    shutil.unpack_archive(archive, place)
    return place / "package" / "dist" / "mermaid.min.js"


def drawn(text: str, theme: str, script: Path, place: Path) -> str:
    """The SVG of a drawing. Raises ValueError where it can't be drawn."""
    name = path_of(text, theme).stem
    settings = {"startOnLoad": False, "theme": "base", "fontFamily": FONT, "deterministicIds": True,
                "themeVariables": {**COLOURS[theme], "fontFamily": FONT, "fontSize": "15px"},
                "flowchart": {"curve": "basis", "htmlLabels": True}}
    page = place / "page.html"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><body><script src="{script.as_uri()}"></script><script>'
        f"mermaid.initialize({json.dumps(settings)});"
        f"mermaid.render('d{name}', {json.dumps(text)}).then(r => document.body.innerHTML = r.svg,"
        " e => document.body.innerHTML = '<pre>' + e + '</pre>');</script>", encoding="utf-8")
    shown = subprocess.run(
        [*CHROMIUM, f"--user-data-dir={place / 'profile'}", "--virtual-time-budget=20000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r"<svg.*</svg>", shown, re.DOTALL)
    if not found or "<pre>" in shown:
        raise ValueError(f"mermaid can't draw\n{text}\n{shown[-2000:]}")
    return found.group(0) + "\n"


# --- terminals


class Terminal:
    """A terminal of so many columns and lines (tmux), in which a shell runs."""

    def __init__(self, columns: int, lines: int, environment: dict[str, str]) -> None:
        self.name = f"spindle-pictures-{os.getpid()}-{columns}x{lines}"
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(lines),
                   "env", *[f"{name}={value}" for name, value in environment.items()], "PS1=$ ", "bash", "--norc")
        self.columns = columns
        self.until(lambda shown: shown.startswith("$"))

    def _tmux(self, *arguments: str) -> str:
        return subprocess.run(["tmux", "-L", self.name, *arguments], check=True, capture_output=True, text=True).stdout

    def type(self, line: str) -> None:
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")

    def key(self, name: str) -> None:
        self._tmux("send-keys", name)

    def shown(self, colours: bool = False) -> str:
        return self._tmux("capture-pane", "-p", *(["-e"] if colours else [])).rstrip("\n ")

    def until(self, condition: Callable[[str], bool], timeout_s: float = 120.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition(self.shown()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"what was waited for doesn't appear; there is\n{self.shown()}")
            time.sleep(0.1)

    def finished(self, command: str, timeout_s: float = 120.0) -> None:
        """Type a command, and wait until the shell asks again."""
        self.type(command)
        self.until(lambda shown: shown.count("\n$") >= 1 and shown.endswith("$"), timeout_s)

    def save(self, title: str, path: Path) -> None:
        picture(self.shown(colours=True), self.columns, title, path)

    def close(self) -> None:
        self._tmux("kill-server")


def picture(ansi: str, columns: int, title: str, path: Path) -> None:
    """A terminal's contents as SVG, without fonts from elsewhere."""
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console
    from rich.text import Text

    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=columns, file=nowhere, force_terminal=True, color_system="truecolor",
                          legacy_windows=False)
        for line in ansi.split("\n"):
            console.print(Text.from_ansi(line), soft_wrap=False, overflow="crop", no_wrap=True)
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace("Fira Code", "DejaVu Sans Mono, Liberation Mono, Menlo, Consolas")
    svg = console.export_svg(title=title, code_format=form, unique_id=f"terminal-{path.stem}")
    described = f'<svg role="img" aria-label="{html.escape(title)}" '
    path.write_text(re.sub(r"[ \t]+$", "", svg.replace("<svg ", described, 1), flags=re.MULTILINE), encoding="utf-8")
    print(path.relative_to(ROOT))


@contextlib.contextmanager
def group(runtime_dir: Path, journals: Path, environment: dict[str, str]) -> Iterator[None]:
    """Three daemons and the programs of the flight, in its most lively part."""
    started: list[subprocess.Popen[bytes]] = []
    python = [sys.executable]

    def start(command: list[str]) -> subprocess.Popen[bytes]:
        is_daemon = "daemon" in command
        one = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL,
                               stdout=subprocess.PIPE if is_daemon else subprocess.DEVNULL)
        started.append(one)
        return one

    try:
        for node, name in enumerate(("alpha", "bravo", "charlie"), 1):
            daemon = start([*python, "-m", "spindle.cli", "daemon", "--node", str(node), "--name", name,
                            "--journal-dir", str(journals / str(node))])
            assert daemon.stdout is not None
            daemon.stdout.readline()
        for node, name in ((2, "primary_flight_display"), (3, "alert_monitor"), (3, "flight_recorder"),
                           (1, "alert_monitor")):
            start([*python, f"examples/{name}.py", "--json", "--node", str(node)])
        for node, name in ((1, "air_data_publisher"), (2, "attitude_publisher")):
            start([*python, f"examples/{name}.py", "--node", str(node), "--start", "3580", "--speed", "32"])
        yield
    finally:
        for one in reversed(started):
            if one.poll() is None:
                one.send_signal(signal.SIGTERM)
        for one in reversed(started):
            try:
                one.communicate(timeout=15)
            except subprocess.TimeoutExpired:
                one.kill()
                one.communicate()


def terminals() -> None:
    # Short, as sockets' paths must be; what still ends may leave something in it meanwhile.
    with tempfile.TemporaryDirectory(prefix="sp", dir="/tmp", ignore_cleanup_errors=True) as place:
        environment = {**os.environ, "SPINDLE_RUNTIME_DIR": f"{place}/run",
                       "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                       "TERM": "xterm-256color", "COLORTERM": "truecolor", "HOME": place, "LC_ALL": "C.UTF-8"}
        environment.pop("TMUX", None)
        shown = {name: environment[name] for name in ("SPINDLE_RUNTIME_DIR", "PATH", "COLORTERM", "LC_ALL", "HOME")}
        opened: list[Terminal] = []

        def terminal(columns: int, lines: int) -> Terminal:
            one = Terminal(columns, lines, shown)
            opened.append(one)
            return one

        try:
            demo = terminal(94, 36)
            demo.type("spindle demo --seconds 20")
            demo.until(lambda text: "ft" in text and "kt" in text.lower(), 60)
            wait_for_lively(demo)
            demo.save("spindle demo, at work", PICTURES / "demo-display.svg")
            demo.until(lambda text: text.endswith("$"))
            demo.save("spindle demo", PICTURES / "demo.svg")
            with group(Path(place) / "run", Path(place) / "journals", environment):
                top = terminal(84, 30)
                top.type("spindle top --interval 0.5")
                top.until(lambda text: "flight" in text)
                wait_for_lively(top)
                top.save("spindle top", PICTURES / "top.svg")
                for name, command, lines in (("status", "spindle status", 44), ("topics", "spindle topics", 16)):
                    one = terminal(100, lines)
                    one.finished(command)
                    one.save(command, PICTURES / f"{name}.svg")
        finally:
            for one in opened:
                with contextlib.suppress(subprocess.CalledProcessError):
                    one.close()


def wait_for_lively(terminal: Terminal) -> None:
    """Until the picture has changed often enough to be worth showing."""
    seen: set[str] = set()

    def enough(text: str) -> bool:
        seen.add(text)
        return len(seen) > 8

    terminal.until(enough)


PARTS: dict[str, Callable[[], None]] = {"drawings": drawings, "terminals": terminals}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the pictures of the documents anew.")
    parser.add_argument("--install", action="store_true", help="fetch what is missing, as root on Debian")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="which [all]")
    options = parser.parse_args()
    parts = options.parts or list(PARTS)
    if lacking := missing(parts):
        if not options.install:
            sys.exit(f"Needed, and not here: {', '.join(lacking)}. As root on Debian, --install fetches them.")
        install(lacking)
    PICTURES.mkdir(parents=True, exist_ok=True)
    for part in parts:
        PARTS[part]()


if __name__ == "__main__":
    main()

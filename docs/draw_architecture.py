"""Draw docs/architecture.svg: the path of a request through the parts of the daemon, and what each may know.

python docs/draw_architecture.py            draws it
python docs/draw_architecture.py --check    says whether it is current

What a part knows are the imports that its files have.
"""

import ast
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "architecture.svg"
PROGRAM = "clairvoyant_cli"
SIBLINGS = ("predictor", "profiles", "tui")
COMMON = ("config", "settings", "files", "addresses", "errors", "system")  # used by every part
PROXY = "proxy/"
WIDTH, HEIGHT = 1220, 706
CHAR = 6.4  # the width of a small character

STYLE = """
  text { font: 13px ui-sans-serif, system-ui, Helvetica, Arial, sans-serif; fill: #1f2430 }
  .name { font-weight: 600; font-size: 14px } .title { font-size: 16px; font-weight: 600 }
  .files { font: 10.5px ui-monospace, Menlo, Consolas, monospace; fill: #3b5bdb } .soft { fill: #6b7280; font-size: 11.5px }
  .knows { fill: #2b6a3f; font-size: 11px } rect { fill: #f6f7f9; stroke: #9aa3b2; rx: 8 } .way { fill: #eef2fb; stroke: #3b5bdb }
  .outside { fill: #fff; stroke-dasharray: 4 3 } .pure { fill: #eef6ee; stroke: #2b8a3e }
  path { fill: none; stroke: #6b7280; stroke-width: 1.4; marker-end: url(#tip) } .request { stroke: #3b5bdb; stroke-width: 2.4 }
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the daemon, its files under the root, what it does, and its place on the sheet."""

    name: str
    files: tuple[str, ...]
    does: str
    x: int
    y: int
    width: int = 174
    height: int = 206
    kind: str = "way"

    @property
    def sources(self) -> list[Path]:
        """The files, each of which exists."""
        found = [ROOT / (name if name.startswith(SIBLINGS) else f"{PROGRAM}/{name}") for name in self.files]
        return [each for path in found for each in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]

    def knows(self) -> str:
        """Return the other packages that the part imports."""
        own = {name.removeprefix(PROXY).split("/")[0] for name in self.files}
        return ", ".join(sorted(set().union(*map(imported_by, self.sources)) - own - set(COMMON)))


def imported_by(path: Path) -> set[str]:
    """Return the packages that a file imports, those of the proxy by their own names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            top, *rest = node.module.split(".")
            if top in SIBLINGS:
                found.add(top)
            elif top == PROGRAM and rest:
                found.add(rest[1] if rest[0] == "proxy" and len(rest) > 2 else rest[0])
    return found - {"proxy"}


CLIENT = Part("Clients", (), "editors, chats, agents, scripts", 12, 84, 96, 206, "outside")
SERVER = Part("LLM server", (), "Ollama, llama.cpp, LM Studio, vLLM", 1108, 84, 104, 206, "outside")
PATH = (
    Part(
        "Connection",
        ("http",),
        "Reads heads and bodies, within limits and time-outs; connections to the servers, too. Knows no LLM.",
        134,
        84,
    ),
    Part(
        "Admission",
        ("proxy/requests/admission.py", "proxy/access"),
        "Whose request is it? What does it ask? How long will its answer be? Queue it, refuse it, or pass "
        "it straight on.",
        328,
        84,
    ),
    Part(
        "Queue",
        ("proxy/queue", "scheduler"),
        "The scheduler decides, without I/O or a clock, which job takes which slot; the dispatcher grants it.",
        522,
        84,
    ),
    Part(
        "Serving",
        ("proxy/requests/serving.py", "proxy/requests/relay.py", "proxy/requests/preemption.py"),
        "Attempts until the answer is complete; passes it on; preempts it and continues it.",
        716,
        84,
    ),
    Part(
        "Servers",
        ("proxy/servers", "backends"),
        "Which are up, how fast they are, and what they have loaded and cached. How each kind is asked.",
        910,
        84,
    ),
)
READS = (
    Part(
        "Protocols",
        ("protocols",),
        "What requests, answers and errors of each API mean.",
        328,
        330,
        174,
        120,
        "pure",
    ),
    Part(
        "Predictor",
        ("predictor",),
        "How long will the answer be, from the prompt alone.",
        134,
        330,
        174,
        120,
        "pure",
    ),
    Part(
        "The end",
        ("proxy/queue/ended.py",),
        "One frozen record, made once the slot is free.",
        716,
        330,
        174,
        120,
        "part",
    ),
    Part(
        "Observing",
        ("proxy/observing",),
        "Statistics, metrics, traces, gain; the snapshot of the state.",
        522,
        480,
        174,
        176,
        "part",
    ),
    Part(
        "Learning",
        ("proxy/learning",),
        "Lengths, speeds, mu_short and tau from what has ended; saves them.",
        716,
        480,
        174,
        176,
        "part",
    ),
    Part(
        "Profiles",
        ("profiles",),
        "The SQLite database: profiles, history, learned state.",
        910,
        480,
        174,
        176,
        "pure",
    ),
    Part(
        "State",
        ("state",),
        "What the daemon publishes: records, encoding, and the client that reads them.",
        328,
        480,
        174,
        176,
        "pure",
    ),
    Part(
        "Front ends",
        ("tui",),
        "top and its web page. Commands such as status read the state, too, and act through the control API.",
        134,
        480,
        174,
        176,
        "part",
    ),
)


def box(part: Part) -> str:
    """Draw a part: its name, files, what it does, and what it knows."""
    x, y, columns = part.x + 10, part.y + 22, int((part.width - 16) / CHAR)
    lines = [("name", part.name)]
    lines += [("files", name.removeprefix(PROXY)) for name in part.files]
    lines += [("soft", line) for line in wrap(part.does, columns)]
    if part.files and (known := part.knows()):
        lines += [("knows", line) for line in wrap(f"imports {known}", columns)]
    text = "".join(
        f'<text class="{kind}" x="{x}" y="{y + 15 * number}">{escape(line)}</text>'
        for number, (kind, line) in enumerate(lines)
    )
    place = f'x="{part.x}" y="{part.y}" width="{part.width}" height="{part.height}"'
    return f'<rect class="{part.kind}" {place}/>{text}'


def arrow(way: str, kind: str = "") -> str:
    return f'<path class="{kind}" d="{way}"/>'


def label(x: int, y: int, text: str) -> str:
    return f'<text class="soft" x="{x}" y="{y}">{escape(text)}</text>'


def drawing() -> str:
    """Return the sheet as SVG."""
    way = [CLIENT, *PATH, SERVER]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
        'orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#3b5bdb;stroke:none"/></marker></defs>',
        f'<rect x="0" y="0" width="{WIDTH}" height="{HEIGHT}" style="fill:#fff;stroke:none;rx:0"/>',
        '<text class="title" x="16" y="32">The path of a request through the daemon</text>',
        label(
            16,
            52,
            "Blue: the request. Below it: what its parts use, and what becomes of it once it has ended.",
        ),
    ]
    for here, there in zip(way, way[1:], strict=False):
        parts.append(arrow(f"M{here.x + here.width} {here.y + 34}H{there.x - 2}", "request"))
    back = CLIENT.y + CLIENT.height - 18
    for here, there in zip(reversed(way), reversed(way[:-1]), strict=False):
        if here.name not in ("Admission", "Queue"):
            end = PATH[0] if there.name == "Queue" else there
            parts.append(arrow(f"M{here.x} {back}H{end.x + end.width + 2}", "request"))
    parts += [
        arrow("M378 290V328"),
        arrow("M350 290C350 312 221 300 221 328"),
        arrow("M803 290V328"),
        label(816, 306, "once the slot is free"),
        arrow("M780 450C780 472 609 452 609 478"),
        arrow("M803 450V478"),
        arrow("M890 540H908"),
        arrow("M522 540H504"),
        arrow("M328 540H310"),
    ]
    parts += [box(part) for part in (CLIENT, *PATH, SERVER, *READS)]
    note = f"Imports of {', '.join(COMMON)}, which every part may use, are left out."
    parts.append(label(16, HEIGHT - 18, note))
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    """Draw, or check."""
    if "--check" not in sys.argv:
        TARGET.write_text(drawing())
        return 0
    if TARGET.read_text() == drawing():
        return 0
    print("docs/architecture.svg is not current; run: python docs/draw_architecture.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

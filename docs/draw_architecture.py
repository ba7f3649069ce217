"""Draw docs/architecture.svg: the packages in their layers, their imports, and the path of a request.

python docs/draw_architecture.py            draws it
python docs/draw_architecture.py --check    says whether it is current

Layers are those of the import contract in pyproject.toml; arrows are the imports that the code has.
"""

import ast
import re
import sys
import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "architecture.svg"
PROGRAM = "clairvoyant_cli"
SIBLINGS = ("predictor", "profiles", "tui")
WAY = (
    ("http/listener", "a client's connection; reads heads and bodies"),
    ("proxy/composition", "own routes, straight through, or the queue"),
    ("proxy/requests/admission", "may it come in; how long will its answer be"),
    ("scheduler/queue", "which waiting job takes which server's slot"),
    ("proxy/requests/serving", "one attempt after another, to the end"),
    ("proxy/requests/relay", "the request to the server, and its answer back"),
    ("http/upstream", "the server's connection"),
)
WIDTH, ROW, BOX, GAP = 1180, 88, 60, 14
CHAR = 6.7
"""Width of a small character."""

EVERYBODYS = ("config", "settings", "files", "addresses", "errors", "system")
"""What everybody uses: arrows to these would hide the others."""

LEFT, HOUSE = 24, 780

STYLE = """
  text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #1f2430 }
  .name { font-weight: 600 } .soft { fill: #6b7280; font-size: 11px } .title { font-size: 15px; font-weight: 600 }
  rect { fill: #f6f7f9; stroke: #9aa3b2; rx: 6 } .sibling { fill: #eef6ee } .step { fill: #eef2fb }
  path { fill: none; stroke: #9aa3b2; stroke-width: 1.2; marker-end: url(#tip) } .way { stroke: #3b5bdb }
"""


@dataclass(frozen=True, slots=True)
class Box:
    """A package or module on the sheet."""

    name: str
    x: float
    y: float
    width: float
    note: str


def layers() -> list[list[str]]:
    """Return the packages and modules of each layer, the uppermost first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rows = next(each["layers"] for each in contracts if each["type"] == "layers")
    names = [[name.strip().removeprefix(f"{PROGRAM}.") for name in re.split("[|:]", row)] for row in rows]
    return [[name for name in row if not name.startswith("__")] for row in names if row != ["__main__"]]


def files_of(name: str) -> list[Path]:
    """Return the source files of a package or module."""
    place = ROOT / name if name in SIBLINGS else ROOT / PROGRAM / name
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def imports_of(name: str, known: list[str]) -> set[str]:
    """Return those of the known packages that a package imports."""
    found = set()
    for path in files_of(name):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            for module in modules:
                top, _, rest = module.partition(".")
                found.add(rest.partition(".")[0] if top == PROGRAM else top)
    return (found & set(known)) - {name}


def said_by(name: str) -> str:
    """Return what a package or module says of itself, its first sentence."""
    text = ast.get_docstring(ast.parse(files_of(name)[0].read_text())) or ""
    return text.split("\n\n")[0].replace("\n", " ").split(". ")[0].split("; ")[0].rstrip(".").replace("`", "")


def boxes(rows: list[list[str]]) -> dict[str, Box]:
    """Place the rows one under the other."""
    placed = {}
    for number, row in enumerate(rows):
        width = (HOUSE - LEFT - GAP * (len(row) - 1)) / max(len(row), 2 if len(row) == 1 else 1)
        start = LEFT if len(row) > 1 else LEFT + (HOUSE - LEFT - width) / 2
        for column, name in enumerate(row):
            placed[name] = Box(name, start + column * (width + GAP), 60 + number * ROW, width, said_by(name))
    return placed


def arrow(start: Box, end: Box) -> str:
    """Draw an import, from the lower edge of one box to the upper edge of another."""
    x1, x2 = start.x + start.width / 2, end.x + end.width / 2
    y1, y2 = start.y + BOX, end.y
    return (
        f'<path d="M{x1:.0f} {y1:.0f} C{x1:.0f} {y1 + 16:.0f} {x2:.0f} {y2 - 22:.0f} {x2:.0f} {y2 - 3:.0f}"/>'
    )


def rect(box: Box, kind: str) -> str:
    """Draw a box with its name and note."""
    x, y, middle = box.x, box.y, box.x + box.width / 2
    place = f'x="{x:.0f}" y="{y:.0f}" width="{box.width:.0f}" height="{BOX}"'
    middle_of = f'x="{middle:.0f}" text-anchor="middle"'
    lines = wrap(box.note, int((box.width - 12) / CHAR), max_lines=2, placeholder=" ...")
    text = "".join(
        f'<text class="soft" {middle_of} y="{y + 36 + 14 * i:.0f}">{escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    return f'<rect class="{kind}" {place}/><text class="name" {middle_of} y="{y + 19:.0f}">{escape(box.name)}</text>{text}'


def neighbours(known: list[str]) -> dict[str, set[str]]:
    """Return the imports to draw: those that do not follow from others by way of a third package."""
    direct = {name: imports_of(name, known) for name in known}

    def below(name: str, without: str) -> set[str]:
        """Return what a package imports directly or by others, but not by way of one that imports it."""
        found, due = set[str](), [name]
        while due:
            new = direct[due.pop()] - found - {without}
            found |= new
            due += new
        return found

    return {
        name: {each for each in near if not any(each in below(other, name) for other in near - {each})}
        for name, near in direct.items()
    }


def drawing() -> str:
    """Return the sheet as SVG."""
    rows = [row for row in layers() if row] + [list(SIBLINGS)]
    placed = boxes(rows)
    height = 60 + max(len(rows), len(WAY)) * ROW + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#9aa3b2;stroke:none"/></marker></defs>',
        f'<rect x="0" y="0" width="{WIDTH}" height="{height}" style="fill:#fff;stroke:none"/>',
        f'<text class="title" x="{LEFT}" y="34">The packages: imports run downward only</text>',
        f'<text class="title" x="{HOUSE + 60}" y="34">The path of a request</text>',
    ]
    for name, near in neighbours(list(placed)).items():
        parts += [arrow(placed[name], placed[each]) for each in sorted(near - set(EVERYBODYS) - set(SIBLINGS))]
    parts += [rect(box, "sibling" if box.name in SIBLINGS else "part") for box in placed.values()]
    steps = [Box(n, HOUSE + 60, 60 + i * ROW, WIDTH - HOUSE - 84, note) for i, (n, note) in enumerate(WAY)]
    parts += [
        arrow(a, b).replace("<path", '<path class="way"') for a, b in zip(steps, steps[1:], strict=False)
    ]
    parts += [rect(box, "step") for box in steps]
    common = ", ".join(name for name in EVERYBODYS if name in placed)
    note = f"Left out: arrows to {common}, which everybody uses, and to the records of the three at the bottom."
    parts.append(f'<text class="soft" x="{LEFT}" y="{height - 14}">{escape(note)}</text>')
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

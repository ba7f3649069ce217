"""Draw what the order gains: docs/screenshots/before-after.svg, and docs/bench/boost-over-load.svg.

    pip install -e lab && python docs/draw_gain.py [--seeds 6] [--requests 1500]

The first is the race of `clairvoyant demo`, the second `clairvoyant simulate` at several loads, in ten minutes.
"""

import argparse
import asyncio
import json
import subprocess
from html import escape
from pathlib import Path

from clairvoyant_cli.commands.demo import raced
from clairvoyant_cli.demo.race import draw
from clairvoyant_lab.svg import Curve, Plot, Point, svg
from predictor.record import LengthClass

DOCS = Path(__file__).resolve().parent
LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.74, 0.8, 0.9)
SIMULATE = "simulate --workload lognormal --predictor error:0.9 --tau 120 --policy fcfs --policy boost --json"
LANES = (("fcfs", "in arrival order", "#9aa0a6"), ("sjf", "through Clairvoyant", "#0072b2"))
ORDER = list(LengthClass)
LEFT, TOP, ROW, WIDE = 190, 64, 30, 460


def run(words: str) -> dict:
    done = subprocess.run(["clairvoyant", *words.split()], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def before_after() -> str:
    """Return a bar for each question of the demo and each order: how long it took to its end."""
    lanes = asyncio.run(raced(250.0, draw(12, 0)))
    took = {lane.policy: {call.question.title: call for call in lane.calls} for lane in lanes}
    titles = sorted(took["fcfs"], key=lambda title: (ORDER.index(took["fcfs"][title].question.length_class), took["fcfs"][title].sojourn_s))
    longest = max(call.sojourn_s for lane in took.values() for call in lane.values())
    high = TOP + ROW * len(titles) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDE + 70} {high}" font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="24" font-size="16">{len(titles)} questions at once: seconds until each answer is complete</text>',
    ]
    for number, (_, name, colour) in enumerate(LANES):
        x = LEFT + 170 * number
        parts.append(f'<rect x="{x}" y="38" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="49">{name}</text>')
    for number, title in enumerate(titles):
        y = TOP + ROW * number
        parts.append(f'<text x="{LEFT - 10}" y="{y + 17}" text-anchor="end">{escape(title)}</text>')
        for below, (lane, _, colour) in enumerate(LANES):
            seconds = took[lane][title].sojourn_s
            wide, top = WIDE * seconds / longest, y + 2 + 12 * below
            parts.append(f'<rect x="{LEFT}" y="{top}" width="{wide:.1f}" height="11" fill="{colour}"/>')
            parts.append(f'<text x="{LEFT + wide + 5:.1f}" y="{top + 10}" font-size="11">{seconds:.1f}</text>')
    return "\n".join([*parts, "</svg>", ""])


def boost_over_load(seeds: int, requests: int) -> tuple[str, str]:
    """Return the plot, and its figures as a table: the change against arrival order in percent."""
    columns = ("short P50", "short P95", "long P50", "long P95", "all P99", "mean")
    curves, rows = [], []
    for name, more in (("order alone", ""), ("with preemption", " --preempt 0.05")):
        found = {}
        for load in LOADS:
            [table] = [each for each in run(f"{SIMULATE}{more} --load {load} --seeds {seeds} --requests {requests}")["tables"] if each["title"] == "Sojourn"]
            cells = {(cell["row"], cell["column"]): cell["ours"] for cell in table["cells"]}
            found[load] = {column: 100 * (cells["boost", column] / cells["fcfs", column] - 1) for column in columns}
            rows.append(f"| {name} | {load:.0%} | {' | '.join(f'{found[load][column]:+.0f}' for column in columns)} |")
        for column, what in (("short P50", "short"), ("long P50", "long")):
            points = tuple(Point(100 * load, found[load][column]) for load in LOADS)
            curves.append(Curve(f"{what}, {name}", points))
    picture = Plot("Median time to the end of an answer, against arrival order", "load of the server, %", "change, %", tuple(curves))
    head = f"| | load | {' | '.join(columns)} |\n|---|---:|{'---:|' * len(columns)}"
    return svg([picture]), "\n".join([head, *rows])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=1500)
    given = parser.parse_args()
    (DOCS / "screenshots" / "before-after.svg").write_text(before_after(), encoding="utf-8")
    picture, figures = boost_over_load(given.seeds, given.requests)
    (DOCS / "bench" / "boost-over-load.svg").write_text(picture, encoding="utf-8")
    print(figures)

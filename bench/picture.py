"""The picture of a campaign: a panel of bars for each figure, as SVG."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH, MARGIN, NAMES, VALUES = 760, 24, 96, 150
BAR, GAP, HEAD = 20, 8, 46
LONGEST = WIDTH - 2 * MARGIN - NAMES - VALUES
STYLE = """
  text { font: 13px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #24292f }
  .title { font-weight: 600; font-size: 14px }
  .note { fill: #6e7781; font-size: 12px }
  .own { font-weight: 600 }
  rect.own { fill: #0b7a75 }
  rect.peer { fill: #b6c2cd }
  rect.tail { fill-opacity: .45 }
"""


@dataclass(frozen=True)
class Panel:
    """One figure; `tail` is a larger one of the same kind that a lighter bar shows."""

    title: str
    note: str
    key: str
    digits: int
    tail: str | None = None


PANELS = (
    Panel(
        "CPU-seconds per million records", "steady state, less is better", "cpu_s_per_million", 2
    ),
    Panel("Records per second", "steady state, more is better", "records_per_s", 0),
    Panel(
        "Freshness, seconds: p50, and p95 lighter",
        "less is better; 5,000 records/s, 1 s commits",
        "freshness_p50_s",
        2,
        "freshness_p95_s",
    ),
)


def draw(result: Mapping[str, Any]) -> str:
    """Put the panels that have figures below each other."""
    parts, top = [], MARGIN
    for panel in PANELS:
        systems = {n: s for n, s in result["systems"].items() if s.get(panel.key) is not None}
        if systems:
            parts.append(_panel(panel, systems, top))
            top += HEAD + len(systems) * (BAR + GAP) + MARGIN
    note = f"{result.get('records', 0):,} records, {result['machine']['cores']} cores, "
    parts.append(_text(MARGIN, top, note + result["date"], "note"))
    height = top + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">\n<style>{STYLE}</style>\n'
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#fff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panel(panel: Panel, systems: Mapping[str, Any], top: int) -> str:
    own = systems.get("icestream", {}).get(panel.key)
    most = max(each[panel.tail or panel.key] for each in systems.values()) or 1
    lines = [
        _text(MARGIN, top + 14, panel.title, "title"),
        _text(WIDTH - MARGIN, top + 14, panel.note, "note", "end"),
    ]
    for row, (name, each) in enumerate(systems.items()):
        y = top + HEAD - 16 + row * (BAR + GAP)
        kind = "own" if name == "icestream" else "peer"
        lengths = [each[key] / most * LONGEST for key in (panel.tail, panel.key) if key]
        value = " / ".join(
            f"{each[key]:,.{panel.digits}f}" for key in (panel.key, panel.tail) if key
        )
        if own and kind == "peer":
            value += f"  ({each[panel.key] / own:.2f} x)"
        lines.append(_text(MARGIN, y + 15, name, kind))
        for depth, length in enumerate(lengths):
            shade = " tail" if depth < len(lengths) - 1 else ""
            lines.append(
                f'<rect class="{kind}{shade}" x="{MARGIN + NAMES}" y="{y}" '
                f'width="{max(length, 1):.1f}" height="{BAR}" rx="2"/>'
            )
        lines.append(_text(MARGIN + NAMES + lengths[0] + 8, y + 15, value, kind))
    return "\n".join(lines)


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )

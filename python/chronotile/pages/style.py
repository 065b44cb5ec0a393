"""The style sheet of pages: light by default, dark where the reader's system is.

Categories are blue, vermilion, green and purple of Okabe & Ito (2008), which colour-deficient vision keeps
apart; marks differ in shape too.
"""

__all__ = ["STYLE"]

STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #17202a; --soft: #5b6673;
  --rule: #dfe3e8;
  --grid: #e9ecf0; --empty: #eef0f3; --c0: #0072b2; --c1: #c4500a; --c2: #00805c; --c3: #9c3f7d; --foot: #d4380d;
  --halo: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --page: #11151a; --card: #1a2027; --ink: #e8ecf0; --soft: #9aa6b2;
  --rule: #303842; --grid: #283039; --empty: #222a32; --c0: #5ab4f0; --c1: #f0904a; --c2: #3ec79a; --c3: #e08cc4;
  --foot: #ff7a4d;
  --halo: #1a2027; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 8px; letter-spacing: -0.01em; }
h2 { font-size: 18px; margin: 0 0 2px; }
p { margin: 0; max-width: 108ch; color: var(--soft); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 12px; margin: 24px 0; }
.figure, section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.figure { padding: 14px 14px; }
.figure b { display: block; font-size: 24px; line-height: 1.25; font-weight: 650;
  font-variant-numeric: tabular-nums; }
.figure span { color: var(--soft); font-size: 13px; }
.row { display: grid; grid-template-columns: minmax(0, 1.12fr) minmax(0, 1fr); gap: 16px; margin-bottom: 16px; }
@media (max-width: 800px) { .row { grid-template-columns: minmax(0, 1fr); } }
section { padding: 18px 20px 14px; min-width: 0; }
section p { font-size: 13.5px; margin-bottom: 10px; }
svg { display: block; width: 100%; height: auto; overflow: visible; font-family: inherit; }
.tick { font-size: 12px; fill: var(--soft); font-variant-numeric: tabular-nums; } .label { font-size: 13px;
  fill: var(--ink); }
.note { font-size: 12.5px; font-weight: 600; fill: var(--ink); paint-order: stroke; stroke: var(--halo);
  stroke-width: 4px; stroke-linejoin: round; }
.grid { stroke: var(--grid); stroke-width: 1; } .axis { stroke: var(--soft); stroke-width: 1; }
  .night { stroke: var(--rule); stroke-width: 1; }
.empty { fill: var(--empty); } .foot { fill: none; stroke: var(--foot); stroke-width: 1.1; stroke-linejoin: round; }
.plane { fill: none; stroke: #ffffff; stroke-width: 1.6; stroke-dasharray: 7 5; } .ring { fill: none;
  stroke: #ffffff; stroke-width: 2.5; }
.onmap { font-size: 12.5px; font-weight: 600; fill: #ffffff; paint-order: stroke; stroke: #00204c;
  stroke-width: 3.5px; stroke-linejoin: round; }
.f0 { fill: var(--c0); } .f1 { fill: var(--c1); } .f2 { fill: var(--c2); } .f3 { fill: var(--c3); }
.s0 { stroke: var(--c0); } .s1 { stroke: var(--c1); } .s2 { stroke: var(--c2); } .s3 { stroke: var(--c3); }
.s0, .s1, .s2, .s3 { fill: none; stroke-width: 1.4; } .trend { stroke-width: 2.6; stroke-linejoin: round;
  stroke-linecap: round; }
.open { fill: var(--card); stroke-width: 1.6; } .dot { opacity: 0.22; } .bar { fill: var(--c0); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; font-size: 13px; vertical-align: bottom; }
th:nth-child(-n+2), td:nth-child(-n+2), .names th:first-child, .names td:first-child { text-align: left; }
.names th:nth-child(2), .names td:nth-child(2) { text-align: right; }
tr:last-child td { border-bottom: 0; }
table.total tr:last-child td { font-weight: 650; }
footer { color: var(--soft); font-size: 13px; margin-top: 20px; }
"""

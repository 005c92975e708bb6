"""The style sheet of a page: light and dark colours, layout from phone to print."""

from __future__ import annotations

# Eight hues that keep apart for the colour-blind by lightness too; each has its counterpart on a dark ground.
_LIGHT = ("#2f6fde", "#e8702a", "#12957d", "#b23fa8", "#c99700", "#6f57d2", "#5f8f1f", "#d6455d")
_DARK = ("#6ea3ff", "#ff9d5c", "#3fc9ac", "#e07fd6", "#e8bf3f", "#a693ff", "#9ccb55", "#ff7e91")


def _palette(colours: tuple[str, ...]) -> str:
    return "".join(f"--c{k}:{colour};" for k, colour in enumerate(colours))


def _colour_classes() -> str:
    return "".join(
        f".s{k}{{stroke:var(--c{k})}}.f{k}{{fill:var(--c{k})}}.b{k}{{background:var(--c{k})}}"
        for k in range(len(_LIGHT))
    )


_LIGHT_RULES = (
    "--ground:#f6f7f9;--panel:#fff;--ink:#171b22;--soft:#5b6472;--line:#e2e6ec;--grid:#eceff3;--code:#f1f3f6;"
    "--note:#2f6fde;--good:#12855f;--warn:#a86500;--bad:#c62f46;" + _palette(_LIGHT)
)
_DARK_RULES = (
    "--ground:#0f1216;--panel:#171b21;--ink:#e9edf2;--soft:#9aa5b4;--line:#2a313b;--grid:#232932;--code:#1e242c;"
    "--note:#6ea3ff;--good:#45d09e;--warn:#f0b14a;--bad:#ff7e91;" + _palette(_DARK)
)

STYLE = (
    f":root{{color-scheme:light dark;{_LIGHT_RULES}}}"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_DARK_RULES}}}}}"
    + _colour_classes()
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;-webkit-text-size-adjust:100%}
header,main,footer{max-width:1128px;margin:0 auto;padding:0 24px}
header{display:flex;gap:16px;align-items:center;padding-top:36px;padding-bottom:4px}
h1{font-size:26px;line-height:1.2;margin:0;letter-spacing:-.015em;overflow-wrap:anywhere}
header p{margin:3px 0 0;color:var(--soft);overflow-wrap:anywhere}
.mark{flex:none;width:44px;height:44px;fill:var(--c0)}
h2{font-size:18px;margin:36px 0 12px;letter-spacing:-.01em}
h3{font-size:15px;margin:24px 0 8px}
p{margin:0 0 12px;max-width:78ch;overflow-wrap:anywhere}
.muted{color:var(--soft);font-size:13.5px}
.box{--tone:var(--note);max-width:none;padding:11px 16px;background:var(--panel);border:1px solid var(--line);
border-left:4px solid var(--tone);border-radius:8px}
.good{--tone:var(--good)}.warn{--tone:var(--warn)}.bad{--tone:var(--bad)}.note{--tone:var(--note)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:20px 0}
.card{background:var(--panel);border:1px solid var(--line);border-radius:10px;padding:13px 16px 12px;min-width:0}
.card span{display:block;color:var(--soft);font-size:13px}
.card strong{display:block;font-size:23px;line-height:1.3;font-weight:650;letter-spacing:-.015em;
font-variant-numeric:tabular-nums;overflow-wrap:anywhere;color:var(--tone,inherit)}
.card small{display:block;color:var(--soft);font-size:12.5px;line-height:1.35;overflow-wrap:anywhere}
.plots{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:12px;margin:12px 0}
.plot{margin:0;background:var(--panel);border:1px solid var(--line);border-radius:10px;padding:14px 16px 12px;
min-width:0;break-inside:avoid}
.wide,.plot:only-child{grid-column:1/-1}
figcaption{display:flex;flex-wrap:wrap;align-items:baseline;gap:2px 10px;margin-bottom:8px}
figcaption b{font-size:14.5px;font-weight:650}
figcaption small{color:var(--soft);font-size:13px}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;margin:0 0 0 auto;padding:0;list-style:none;font-size:13px;
color:var(--soft)}
.legend i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}
.drawing{container-type:inline-size}
.drawing svg{display:block;width:100%;height:auto;font:12px/1 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.drawing svg.narrow{display:none}
.drawing text{fill:var(--soft);font-variant-numeric:tabular-nums}
.drawing .strong{fill:var(--ink);font-weight:600}
.drawing .total{fill:var(--ink)}.drawing .bad{fill:var(--bad);font-weight:600}
.drawing .limit-text{fill:var(--bad)}
.grid{stroke:var(--grid);fill:none}.axis{stroke:var(--line);fill:none}.track{fill:var(--grid)}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.faint{fill:none;stroke-width:1;opacity:.42;stroke-linejoin:round}
.dashed{stroke-dasharray:5 4}
.area{opacity:.28}
.limit{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:4 3;fill:none}
.dot{stroke:var(--panel);stroke-width:1}
.hover{opacity:0}.hover:hover,.dot:hover{opacity:1;stroke:var(--panel);stroke-width:2}
rect:hover{filter:brightness(1.08)}
.table{overflow-x:auto;margin:12px 0;background:var(--panel);border:1px solid var(--line);border-radius:10px}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:7px 16px;text-align:left;vertical-align:top;border-bottom:1px solid var(--grid)}
td{overflow-wrap:anywhere;min-width:5em}
tbody tr:last-child td{border-bottom:0}
th{font-weight:600;color:var(--soft);font-size:13px;white-space:nowrap;border-bottom-color:var(--line)}
td.r,th.r{text-align:right;white-space:nowrap}td.c,th.c{text-align:center}
pre{margin:12px 0;padding:13px 16px;overflow:auto;max-height:32em;background:var(--code);border:1px solid var(--line);
border-radius:10px;font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
details{margin:12px 0}summary{cursor:pointer;color:var(--soft)}summary:hover{color:var(--ink)}
footer{color:var(--soft);font-size:12.5px;padding-top:36px;padding-bottom:36px}
@container (max-width:460px){.drawing svg.narrow{display:block}.drawing svg.half,.drawing svg.full{display:none}}
@media (max-width:860px){.plots{grid-template-columns:minmax(0,1fr)}}
@media (max-width:560px){header,main,footer{padding-left:14px;padding-right:14px}header{padding-top:20px}
h1{font-size:21px}.cards{grid-template-columns:repeat(2,minmax(0,1fr));gap:8px}.card{padding:10px 12px}
.card strong{font-size:19px}.legend{margin-left:0}th,td{padding:7px 10px}}
@media print{body{background:#fff;font-size:11pt}.card,.plot,.table,pre,.box{break-inside:avoid}pre{max-height:none;
white-space:pre-wrap}header{padding-top:0}}
"""
)

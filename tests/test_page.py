"""The page kit: valid, self-contained, escaped HTML; plots that say what the numbers say."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from systolic._format import tick_labels
from systolic._page import Page, area_plot, bar_plot, downsample, format_value, line_plot, nice_ticks, write_atomically
from systolic._plots import running_mean

VOID = {"meta", "br", "link", "img", "hr", "input"}


class _Balance(HTMLParser):
    """Collects tags and text; fails on an end tag that does not close the newest open one."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"an attribute of <{tag}> is given twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag
        self.open.pop()

    def handle_data(self, data):
        self.text.append(data)


def parse(html: str) -> _Balance:
    parser = _Balance()
    parser.feed(html)
    parser.close()
    assert not parser.open
    return parser


def full_page() -> Page:
    page = Page('Run <1> & "co"', "it's small", footer="end")
    page.add_heading("A & B").add_heading("sub", level=3).add_text("first\n\nsecond <i>").add_text("careful", "warn")
    page.add_cards([("loss", "0.1", "eval"), ("over", "1 GiB", "", "bad")])
    page.add_table(["name", "bytes"], [["<b>", 4], [None, 5.5]], "lr")
    page.add_plot(line_plot({"<train>": ([0, 1, 2], [1.0, math.nan, 3.0])}, "step", "loss", 'T "quoted" <t>'))
    page.add_plot(bar_plot({"train <1>": {"a": 5.0, "b": 2.0}}, "Memory", kind="bytes", limit=("HBM", 4.0)))
    page.add_plot(area_plot(range(3), {"p": [1, 1, 1], "q": [0, 2, 0]}, "at", "bytes", "Live", limit=("HBM", 4.0)))
    return page


def test_page_is_balanced_self_contained_and_escaped():
    html = full_page().html()
    parser = parse(html)
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(|<script", html)
    assert not [a for _, attributes in parser.tags for a in attributes if a in ("src", "href") or a.startswith("on")]
    text = "".join(parser.text)
    for given in ('Run <1> & "co"', "it's small", "second <i>", "<b>", "<train>", "train <1>"):
        assert given in text
    assert "i" not in [tag for tag, attributes in parser.tags if not attributes]


def test_every_drawing_has_a_role_and_a_name():
    drawings = [a for tag, a in parse(full_page().html()).tags if tag == "svg" and "aria-hidden" not in a]
    assert len(drawings) == 6  # three plots, each for a wide and a narrow place
    assert all(a["role"] == "img" and a["aria-label"] for a in drawings)


def test_html_can_be_taken_twice_and_the_page_continued():
    page = Page("t").add_plot(line_plot({"a": ([0, 1], [0, 1])}, "x", "y", "p"))
    assert page.html() == page.html()
    assert "after" in page.add_text("after").html()


def test_write_replaces_the_whole_file_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "deep" / "page.html"
    assert full_page().write(path) == path
    Page("new").write(path)
    assert "<h1>new</h1>" in path.read_text(encoding="utf-8")
    assert [p.name for p in path.parent.iterdir()] == ["page.html"]


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = write_atomically(tmp_path / "f", "old")

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda p: p.add_heading("x", level=1), "level is 1"),
        (lambda p: p.add_text("x", "loud"), "tone is 'loud'"),
        (lambda p: p.add_cards([("a", "b", "c", "loud")]), "tone is 'loud'"),
        (lambda p: p.add_table(["a"], [["b", "c"]]), "row 0 has 2 cells, the table has 1"),
        (lambda p: p.add_table(["a"], [["b"]], "x"), "must be l, r or c"),
    ],
)
def test_wrong_arguments_are_named(add, message):
    with pytest.raises(ValueError, match=message):
        add(Page("t"))


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (0, "number", "0"),
        (12500, "number", "12,500"),
        (0.03125, "number", "0.03125"),
        (1234567, "number", "1,234,567"),
        (3.14159, "number", "3.142"),
        (-2.5e-7, "number", "-2.50e-07"),
        (math.nan, "number", "nan"),
        (512, "bytes", "512 B"),
        (1.5 * 2**30, "bytes", "1.50 GiB"),
        (0.0123, "percent", "1.2 %"),
        (0.978, "percent", "98 %"),
        (0.00005, "seconds", "50 µs"),
        (3.14, "seconds", "3.1 s"),
        (75, "seconds", "1 min 15 s"),
        (7260, "seconds", "2 h 1 min"),
    ],
)
def test_values_read_as_a_person_writes_them(value, kind, text):
    assert format_value(value, kind) == text


def test_ticks_are_round_and_inside():
    assert nice_ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert nice_ticks(-0.31, 0.29, 4) == [-0.2, 0.0, 0.2]
    assert nice_ticks(3, 3) == [3]
    generator = np.random.default_rng(0)
    for low, width, count in zip(generator.normal(size=200) * 100, generator.lognormal(0, 5, 200), [3, 5, 8, 4] * 50):
        ticks = nice_ticks(low, low + width, count)
        assert 1 <= len(ticks) <= count + 1
        assert all(low - 1e-6 * width <= t <= low + width * (1 + 1e-6) for t in ticks)


def test_labels_of_an_axis_share_their_unit():
    assert tick_labels([0, 5000, 10000], "number") == ["0", "5k", "10k"]
    assert tick_labels([0, 0.00025, 0.0005, 0.001], "number") == ["0", "0.00025", "0.00050", "0.00100"]
    assert tick_labels([0, 2**29, 2**30], "bytes") == ["0 GiB", "0.5 GiB", "1.0 GiB"]
    assert tick_labels([0.0, 0.5, 1.0], "percent") == ["0 %", "50 %", "100 %"]


def test_downsampling_keeps_every_extreme():
    y = np.random.default_rng(0).normal(size=50_000)
    y[31_234], y[7] = 50.0, -50.0
    points = [(float(i), float(v)) for i, v in enumerate(y)]
    kept = downsample(points, 500, 0.0, 49_999.0)
    assert len(kept) <= 2 * 501
    assert kept == sorted(kept)
    assert set(kept) <= set(points)
    assert {(31_234.0, 50.0), (7.0, -50.0)} <= set(kept)
    for k in range(500):  # the covered band of each column, worked out with NumPy
        inside = y[(np.arange(50_000) * (500 / 49_999)).astype(int) == k]
        mine = [v for x, v in kept if int(x * (500 / 49_999)) == k]
        assert (min(mine), max(mine)) == (inside.min(), inside.max())


def test_running_mean_leaves_a_straight_line_straight_and_cuts_its_window_at_the_ends():
    line = [(float(i), 3.0 * i + 1) for i in range(50)]
    np.testing.assert_allclose(running_mean(line, 9)[1:-1], line[1:-1])
    assert running_mean(line, 9)[0] == (0.0, (1 + 4) / 2)
    assert running_mean([(0.0, 0.0), (1.0, 3.0), (2.0, 0.0)], 3)[1] == (1.0, 1.0)


def paths(svg: str, style: str) -> list[str]:
    return [a["d"] for tag, a in parse(svg).tags if tag == "path" and style in a["class"].split()]


def test_nan_and_infinity_leave_gaps():
    svg = line_plot({"a": (range(6), [1, 2, math.nan, 4, math.inf, 6])}, "x", "y", "t")
    assert [d.count("M") for d in paths(svg, "line")] == [3, 3]
    assert "nan" not in svg
    assert "inf" not in svg.replace("infinity", "")


def test_log_axis_leaves_out_what_is_not_positive_and_spaces_decades_evenly():
    svg = line_plot({"a": (range(5), [100.0, 10.0, 1.0, 0.0, -3.0])}, "x", "y", "t", log_y=True)
    heights = [float(h) for h in re.findall(r" ([\d.]+)", paths(svg, "line")[0])]
    assert len(heights) == 3
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=0.11)


def test_long_lines_are_thinned_and_long_noisy_ones_get_their_mean():
    n = 30_000
    svg = line_plot({"a": (range(n), np.random.default_rng(0).normal(size=n))}, "x", "y", "t", smooth=True)
    assert len(svg) < 150_000
    assert len(paths(svg, "faint")) == len(paths(svg, "line")) == 2
    assert "running mean" in svg


@pytest.mark.parametrize("y", [[], [math.nan, math.inf]])
def test_a_plot_of_nothing_says_so(y):
    assert "No finite values" in line_plot({"a": (range(len(y)), y)}, "x", "y", "t")


def test_a_plot_of_nothing_at_all_says_so():
    assert "No finite values" in area_plot([], {}, "x", "y", "t")
    assert "No finite values" in bar_plot({}, "t")
    assert "No finite values" in line_plot({}, "x", "y", "t")


@pytest.mark.parametrize("value", [0.0, 5.0, -1e-12, 1e30])
@pytest.mark.parametrize("log_y", [False, True])
def test_one_point_and_constant_series_are_drawn(value, log_y):
    parse(line_plot({"a": ([3], [value])}, "x", "y", "t", log_y=log_y))
    parse(line_plot({"a": ([3, 4], [value, value])}, "x", "y", "t", log_y=log_y))


def test_series_of_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        line_plot({"a": ([1, 2], [1])}, "x", "y", "t")
    with pytest.raises(ValueError, match="layers have 1 values, x has 2"):
        area_plot([1, 2], {"a": [1]}, "x", "y", "t")


def test_bar_lengths_are_in_proportion_and_the_overfull_one_is_marked():
    svg = bar_plot({"a": {"p": 30.0, "q": 10.0}, "b": {"p": 15.0}}, "t", limit=("room", 32.0))
    rects = [a for tag, a in parse(svg).tags if tag == "rect" and a.get("class") != "track"][:3]
    widths = [float(a["width"]) + 1 for a in rects]  # a hairline of one pixel parts neighbours
    assert widths[0] / widths[1] == pytest.approx(3, rel=0.01)
    assert widths[0] / widths[2] == pytest.approx(2, rel=0.01)
    assert rects[0]["class"] == rects[2]["class"] != rects[1]["class"]
    marked = re.findall(r'class="total bad">([^<]*)', svg)
    assert marked == ["40 · 125 %"] * 2


def test_area_names_its_peak_even_when_thinned():
    n = 20_000
    layer = np.ones(n)
    layer[12_345] = 9.0
    svg = area_plot(range(n), {"a": layer, "b": np.ones(n)}, "instruction", "", "t")
    assert "peak 10 at instruction 12,345" in svg
    assert len(svg) < 200_000

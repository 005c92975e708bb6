"""What an input_fn may return, row by row of the table in docs/data.md: how it is read, or what the refusal says."""

import array
import asyncio
import collections
import decimal
import io
import pathlib
import re

import numpy as np
import pytest

from systolic import data
from systolic._errors import InputError

N = 6
X = np.arange(2 * N, dtype=np.float32).reshape(N, 2)
Y = np.arange(N, dtype=np.int32)

Named = collections.namedtuple("Named", ["features", "labels"])
Fields = collections.namedtuple("Fields", ["x", "y"])


class ByNumber:
    """No iterator, and no IndexError at the end."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return {"x": X[i % N]}, Y[i % N]


class Picture:
    """What an image library gives: an array only by its interface."""

    __array_interface__ = X[0].__array_interface__


def first(source):
    return next(data.Batches(source, 4, tail="pad", epochs=1))


STRUCTURED = np.array([(i, i / 2) for i in range(N)], dtype=[("a", "i4"), ("b", "f4")])

WITH_LABELS = {
    "pair of arrays": lambda: (X, Y),
    "named pair of arrays": lambda: Named(X, Y),
    "zip": lambda: zip(X, Y),
    "generator of pairs": lambda: ((x, y) for x, y in zip(X, Y)),
    "generator of named pairs": lambda: (Named(x, y) for x, y in zip(X, Y)),
    "generator of lists of two": lambda: ([x, y] for x, y in zip(X, Y)),
    "list of pairs": lambda: list(zip(X, Y)),
    "deque of pairs": lambda: collections.deque(zip(X, Y)),
    "map": lambda: map(lambda x, y: (x, y), X, Y),
    "memory view": lambda: (memoryview(X), array.array("i", range(N))),
    "matrix without masked values": lambda: (np.ma.array(X), Y),
}


@pytest.mark.parametrize("source", WITH_LABELS.values(), ids=WITH_LABELS)
def test_pairs_are_features_and_labels(source):
    batch = first(source)
    np.testing.assert_array_equal(batch.features, X[:4])
    np.testing.assert_array_equal(batch.labels, Y[:4])
    assert type(batch.features) is np.ndarray


FEATURES_ALONE = {
    "dict of arrays": (lambda: {"x": X, "y": Y}, {"x": X, "y": Y}),
    "features and None": (lambda: ({"x": X, "y": Y}, None), {"x": X, "y": Y}),
    "one-tuple": (lambda: ({"x": X},), {"x": X}),
    "list of dicts": (lambda: [{"x": x, "y": y} for x, y in zip(X, Y)], {"x": X, "y": Y}),
    "generator of features and None": (lambda: (({"x": x, "y": y}, None) for x, y in zip(X, Y)), {"x": X, "y": Y}),
    "named tuple of features": (lambda: Fields(X, Y), {"x": X, "y": Y}),
    "generator of named tuples": (lambda: (Fields(x, y) for x, y in zip(X, Y)), {"x": X, "y": Y}),
    "structured array": (lambda: STRUCTURED, {"a": STRUCTURED["a"], "b": STRUCTURED["b"]}),
    "rows of a structured array": (lambda: iter(STRUCTURED), {"a": STRUCTURED["a"], "b": STRUCTURED["b"]}),
    "range and list": (lambda: {"a": range(N), "b": [0.5] * N}, {"a": Y, "b": np.full(N, 0.5)}),
}


@pytest.mark.parametrize(("source", "expected"), FEATURES_ALONE.values(), ids=FEATURES_ALONE)
def test_what_is_no_pair_is_features(source, expected):
    batch = first(source)
    assert batch.labels is None
    assert set(batch.features) == set(expected)
    for name, column in expected.items():
        np.testing.assert_array_equal(batch.features[name], column[:4])


def test_a_tuple_given_to_arrays_is_features():
    batch = first(data.arrays((X, Y)))
    assert batch.labels is None
    np.testing.assert_array_equal(batch.features[1], Y[:4])
    np.testing.assert_array_equal(first(data.arrays((X, Y, X), Y)).labels, Y[:4])


def test_elements_of_one_number_are_examples():
    for source in (lambda: iter(Y), lambda: range(N), lambda: [float(y) for y in Y]):
        np.testing.assert_array_equal(first(source).features, Y[:4])


def test_an_object_with_length_and_items_is_read_by_number():
    for source in (ByNumber(), ByNumber):
        np.testing.assert_array_equal(first(source).features["x"], X[:4])


def test_a_picture_is_an_array():
    batch = first(lambda: (({"image": Picture()}, y) for y in Y))
    np.testing.assert_array_equal(batch.features["image"], np.tile(X[0], (4, 1)))


@pytest.mark.parametrize(
    "source", [lambda: iter(X), lambda: [X, X], lambda: X.tolist(), lambda: (({"x": x},) for x in X)]
)
def test_elements_of_one_array_need_a_mark(source):
    with pytest.raises(
        InputError, match=r"an element of one array of shape \(\d, ?\d?\) seen, which may be one example .*examples\("
    ):
        first(source)
    assert data.Batches(data.batches(source), 2).spec is not None


def test_a_mark_settles_what_elements_of_one_array_are():
    np.testing.assert_array_equal(first(data.examples(lambda: iter(X))).features, X[:4])
    np.testing.assert_array_equal(first(data.batches(lambda: iter(X))).features, X[:2].ravel())


def test_a_known_spec_settles_what_elements_of_one_array_are():
    spec = data.Batches({"x": X}, 2).spec
    batch = next(data.Batches(lambda: ({"x": x} for x in X), 4, spec=spec))
    np.testing.assert_array_equal(batch.features["x"], X[:4])


async def coroutine():
    return X


async def async_generator():
    yield X


class NoLength:
    def __getitem__(self, i):
        return X[i]


WANTED = r"an array, a dict or tuple of arrays, .* wanted"
NOT_DATA = {
    "None": (lambda: None, rf"None seen; {WANTED}\. Does input_fn end without a return"),
    "int": (lambda: 3, rf"int seen; {WANTED}"),
    "object": (object, rf"object seen; {WANTED}"),
    "str": (lambda: "train.csv", rf"str seen; {WANTED}\. Read the file"),
    "bytes": (lambda: b"train", r"bytes seen.*Read the file"),
    "path": (lambda: pathlib.Path("train.csv"), r"Path seen.*Read the file"),
    "file": (lambda: io.StringIO("1\n2\n"), r"StringIO seen.*Read the file"),
    "set": (lambda: {1.0, 2.0}, r"set seen.*A set has no order"),
    "items of a dict": (lambda: {"x": X}.items(), r"dict_items seen.*or the dict itself"),
    "values of a dict": (lambda: {"x": X}.values(), r"dict_values seen.*or the dict itself"),
    "async generator": (async_generator, r"async_generator seen.*without async"),
    "items without length": (NoLength, r"NoLength seen.*__getitem__ and no __len__"),
    "three arrays": (lambda: (X, X, Y), r"tuple of 3 seen; features, or a pair .*'weight'.*\(\(a, b, c\), None\)"),
    "zip of three": (lambda: zip(X, X, Y), r"tuple of 3 seen; features, or a pair"),
    "lists of three tensors": (lambda: ([x, x, y] for x, y in zip(X, Y)), r"list of 3 seen; features, or a pair"),
    "tuple of examples": (lambda: tuple(zip(X, Y)), r"tuple of 6 seen.*several examples go into a list"),
    "pair of dicts of scalars": (lambda: ({"x": 1.0}, {"x": 2.0}), r"feature 'x': a scalar seen, an array of shape \(N"),
    "scalar array": (lambda: np.array(3.0), r"features: a scalar seen, an array of shape \(N, \.\.\.\) with one row"),
    "dict with a scalar": (lambda: {"x": X, "y": 3.0}, r"feature 'y': a scalar seen, an array of shape \(N"),
    "dict of generators": (lambda: {"x": iter(X)}, r"feature 'x': \w+ seen, an array of shape \(N.*yield them"),
    "pair of file names": (lambda: ("a.csv", "b.csv"), r"features: str seen, an array of shape \(N"),
    "dict of functions": (lambda: {"x": lambda: X}, r"feature 'x': function seen, an array of shape \(N"),
    "dict of None": (lambda: {"x": None}, r"no features seen \(dict of 1\)"),
    "empty dict": (dict, r"no features seen \(dict of 0\)"),
    "generator of None": (lambda: iter([None]), r"no features seen \(None\)"),
    "generator of strings": (lambda: iter(["a"]), r"only features \(str\) seen, which cannot go to a device"),
    "generator of sets": (lambda: iter([{1, 2}]), r"features: set seen, an array or a number wanted"),
    "example with a generator": (lambda: [{"x": iter(X), "y": 1}], r"feature 'x': \w+ seen, an array or a number wanted"),
    "masked values": (lambda: {"x": np.ma.array(X, mask=X > 9)}, r"'x': a masked array with 2 masked values.*x\.filled"),
    "numbers of Python": (lambda: [{"x": decimal.Decimal("1.5"), "y": 1}], r"object array of Decimal seen.*np\.float32"),
    "numbers and None": (lambda: {"x": np.array([1.0, None])}, r"feature 'x' \(NoneType and float\) seen, which cannot go"),
    "masked value": (lambda: [{"x": np.ma.masked, "y": 1}], r"'x': a masked array with 1 masked values"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "message"), NOT_DATA.values(), ids=NOT_DATA)
def test_what_is_no_data_is_refused_with_a_remedy(source, message):
    with pytest.raises(InputError, match=message):
        first(source)


def test_a_masked_value_in_a_later_element_is_seen():
    rows = [np.ma.array(x, mask=x > 8) for x in X]
    with pytest.raises(InputError, match=r"feature 'x': a masked array with 1 masked values"):
        list(data.Batches(data.examples([{"x": row} for row in rows]), 2, epochs=1))


def test_a_coroutine_is_refused():
    waiting = coroutine()
    with pytest.raises(InputError, match=r"coroutine seen.*without async"):
        first(lambda: waiting)
    asyncio.run(waiting)


def test_a_generator_that_is_used_up_is_told_apart_from_no_data():
    used = iter(ByNumber().__getitem__(i) for i in range(N))
    list(used)
    for source in (used, lambda: used, data.examples(used)):
        with pytest.raises(
            InputError, match=r"has 0 examples.*iterator, which runs once, and may be used up.*new one in each"
        ):
            first(source)


@pytest.mark.parametrize("kind", ["csr_matrix", "csr_array", "coo_matrix"])
def test_sparse_matrices_of_scipy_are_refused(kind):
    make = getattr(pytest.importorskip("scipy.sparse"), kind)
    for source in (lambda: {"x": make(X)}, lambda: (make(X), Y), lambda: [{"x": make(x[None]), "y": 1} for x in X]):
        with pytest.raises(InputError, match=rf"a {kind} seen, a dense array .* Make it dense"):
            first(source)


def test_sparse_arrays_of_jax_are_refused():
    sparse = pytest.importorskip("jax.experimental.sparse")
    with pytest.raises(InputError, match=r"feature 'x': a BCOO seen, a dense array"):
        first({"x": sparse.BCOO.fromdense(X)})


def test_what_cannot_become_an_array_is_named_with_the_cause():
    class Broken:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("gone")

    with pytest.raises(
        InputError, match=r"feature 'x': a Broken seen that does not become a NumPy array \(gone\)"
    ) as caught:
        first(lambda: [{"x": Broken(), "y": 1}])
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": Y, "b": X[:, 0], "s": [f"row {i}" for i in Y]})
    for source in (
        lambda: frame,
        lambda: frame.itertuples(index=False),
        lambda: frame.to_dict("records"),
        lambda: (frame[i : i + 2] for i in range(0, N, 2)),
    ):
        batch = first(source)
        np.testing.assert_array_equal(batch.features["a"], Y[:4])
        np.testing.assert_array_equal(batch.features["b"], X[:4, 0])
        assert batch.host["s"].tolist() == ["row 0", "row 1", "row 2", "row 3"]
    np.testing.assert_array_equal(first((frame, pandas.Series(Y))).labels, Y[:4])
    np.testing.assert_array_equal(first(pandas.Series(Y)).features, Y[:4])
    missing = pandas.Series([1, None] * 3, dtype="Int64")
    np.testing.assert_array_equal(first({"x": missing}).features["x"], np.array([1, np.nan, 1, np.nan], np.float32))
    for source, message in {
        frame.iterrows: "a pair of an index and a pandas Series seen, as iterrows",
        lambda: frame.groupby("a"): "a pair of an index and a pandas DataFrame seen",
        lambda: pandas.DataFrame(X): r"the name 0 \(int\) seen.*frame\.rename",
        lambda: pandas.DataFrame(X, columns=["a", "a"]): "two columns called 'a' seen in a DataFrame",
    }.items():
        with pytest.raises(InputError, match=message):
            first(source)


def test_the_page_on_data_has_the_table_of_readings():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "data.md").read_text()
    table = page.split("## How it is read")[1].split("\n## ")[0]
    for word in (
        "named tuple",
        "generator",
        "three or more",
        "masked",
        "sparse",
        "set",
        "iterrows",
        "None",
        "structured",
    ):
        assert re.search(word, table), word

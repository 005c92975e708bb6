"""Whatever an input_fn may return gives the same batches: one conformance suite over all kinds of source."""

import collections
import itertools
import json
import types

import grain
import jax.numpy as jnp
import numpy as np
import pytest

from systolic import data

N = 11
X = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
Y = np.arange(N, dtype=np.int32) * 10
ROWS = [({"x": X[i]}, Y[i]) for i in range(N)]
CHUNKS = [({"x": X[i : i + 4]}, Y[i : i + 4]) for i in range(0, N, 4)]


class FakeTensor:
    """A torch.Tensor as far as anyone can see without torch: its methods, dtype and shape are not NumPy's."""

    class dtype:
        def __repr__(self):
            return "torch.float32"

    dtype = dtype()

    def __init__(self, array):
        self._array = array

    @property
    def shape(self):
        return self._array.shape

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self._array


class FakeDataLoader:
    """torch.utils.data.DataLoader: its attributes, and lists for pairs, as default_collate makes them."""

    def __init__(self, batch_size):
        self.batch_size, self.batch_sampler, self.dataset = batch_size, batch_size and object(), ROWS

    def __iter__(self):
        elements = ROWS if self.batch_size is None else CHUNKS
        for features, labels in elements:
            yield [{name: FakeTensor(value) for name, value in features.items()}, FakeTensor(np.asarray(labels))]


class FakeDistributedSampler:
    """torch.utils.data.DistributedSampler: a new order for each epoch it is told of."""

    def set_epoch(self, epoch):
        self.epoch = epoch


class RandomSampler:
    """torch.utils.data.RandomSampler, by name."""


class FakeColumn(np.ndarray):
    def to_numpy(self):
        return np.asarray(self)


class FakeDataFrame:
    """pandas.DataFrame: columns by name, iterating gives names."""

    def __init__(self, **columns):
        self._columns, self.columns = columns, list(columns)

    def __getitem__(self, name):
        return self._columns[name]

    def __iter__(self):
        return iter(self.columns)

    def __len__(self):
        return N

    def to_numpy(self):
        raise AssertionError("columns may differ in dtype")


class FakeMapDataset:
    """torch.utils.data.Dataset: elements by number, no iterator, no IndexError."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return ROWS[i % N]


class FakeShape(tuple):
    rank = property(len)


class FakeTfDataset:
    """tf.data.Dataset: element_spec, skip, as_numpy_iterator."""

    def __init__(self, elements, leading):
        self.elements = elements
        lead = () if leading is Ellipsis else (leading,)
        spec = types.SimpleNamespace
        self.element_spec = ({"x": spec(shape=FakeShape((*lead, 3)))}, spec(shape=FakeShape(lead)))

    def skip(self, count):
        skipped = FakeTfDataset(self.elements[count:], None)
        skipped.element_spec = self.element_spec
        return skipped

    def as_numpy_iterator(self):
        return iter(self.elements)


class Sequence:
    def __len__(self):
        return N

    def __getitem__(self, i):
        return ROWS[i]


Pair = collections.namedtuple("Pair", ["x"])

SOURCES = {
    "tuple of arrays": ({"x": X}, Y),
    "arrays": data.arrays({"x": X}, Y),
    "jax arrays": ({"x": jnp.asarray(X)}, jnp.asarray(Y)),
    "lists": ({"x": X.tolist()}, Y.tolist()),
    "tensors": ({"x": FakeTensor(X)}, FakeTensor(Y)),
    "function of arrays": lambda: ({"x": X}, Y),
    "list of examples": ROWS,
    "function of a generator": lambda: iter(ROWS),
    "generator of batches": data.batches(lambda: iter(CHUNKS)),
    "marked by the function": lambda: data.batches(iter(CHUNKS)),
    "marked list": data.examples(ROWS),
    "examples of python values": [({"x": [float(v) for v in X[i]]}, int(Y[i])) for i in range(N)],
    "named tuples": [(Pair(X[i]), Y[i]) for i in range(N)],
    "ordered dicts": [(collections.OrderedDict(x=X[i]), Y[i]) for i in range(N)],
    "mappings": [(types.MappingProxyType({"x": X[i]}), Y[i]) for i in range(N)],
    "jax batches": data.batches([({"x": jnp.asarray(f["x"])}, jnp.asarray(y)) for f, y in CHUNKS]),
    "map-style data set": FakeMapDataset(),
    "torch loader of batches": FakeDataLoader(4),
    "torch loader of examples": FakeDataLoader(None),
    "tf.data of batches": FakeTfDataset(CHUNKS, None),
    "tf.data of examples": FakeTfDataset(ROWS, ...),
    "grain map data set": grain.MapDataset.source(Sequence()),
    "grain of batches": lambda: grain.MapDataset.source(Sequence()).batch(4),
    "grain iter data set": grain.MapDataset.source(Sequence()).to_iter_dataset(),
    "grain iter of batches": grain.MapDataset.source(Sequence()).to_iter_dataset().batch(4),
    "grain loader": grain.DataLoader(
        data_source=Sequence(), sampler=grain.samplers.SequentialSampler(N, grain.sharding.NoSharding()), worker_count=0
    ),
    "grain loader of batches": grain.DataLoader(
        data_source=Sequence(),
        sampler=grain.samplers.SequentialSampler(N, grain.sharding.NoSharding()),
        operations=[grain.transforms.Batch(4)],
        worker_count=0,
    ),
}
everything = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


@everything
def test_all_rows_arrive_once_and_in_order(source, caplog):
    batches = list(data.Batches(source, 4, tail="pad", epochs=1))
    np.testing.assert_array_equal(np.concatenate([b.features["x"][b.mask] for b in batches]), X)
    np.testing.assert_array_equal(np.concatenate([b.labels[b.mask] for b in batches]), Y)
    assert [b.count for b in batches] == [4, 4, 3]
    assert "was read as" not in caplog.text  # nothing here is ambiguous


@everything
def test_later_epochs_and_carried_tails(source):
    batches = itertools.islice(data.Batches(source, 4, stack=2), 4)
    got = np.concatenate([b.features["x"].reshape(-1, 3) for b in batches])
    np.testing.assert_array_equal(got, np.resize(X, (32, 3)))


@everything
@pytest.mark.parametrize("after", [0, 2, 4, 7])
def test_continuing_is_exact(source, after):
    undisturbed = list(itertools.islice(data.Batches(source, 3), 9))
    start = json.loads(json.dumps(undisturbed[after].position))
    for expected, got in zip(undisturbed[after + 1 :], data.Batches(source, 3, start=start)):
        np.testing.assert_array_equal(got.features["x"], expected.features["x"])
        np.testing.assert_array_equal(got.labels, expected.labels)
        assert {**got.position, "state": 0, "state_element": 0} == {
            **expected.position,
            "state": 0,
            "state_element": 0,
        }


@everything
def test_labels_can_be_left_out(source):
    batch = next(data.Batches(source, 4, labels_expected=False))
    assert batch.labels is None
    np.testing.assert_array_equal(batch.features["x"], X[:4])


@pytest.mark.parametrize("loader", [False, True])
def test_grain_continues_by_state_and_not_by_reading_again(loader):
    read = []

    class Source:
        def __repr__(self):
            return "Source"

        def __len__(self):
            return 200

        def __getitem__(self, i):
            read.append(int(i))
            return {"x": np.int32(i)}

    def input_fn():
        if not loader:
            options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
            return grain.MapDataset.source(Source()).shuffle(seed=1).to_iter_dataset(options)
        sampler = grain.samplers.IndexSampler(200, shard_options=grain.sharding.NoSharding(), shuffle=True, seed=1)
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
        return grain.DataLoader(data_source=Source(), sampler=sampler, worker_count=0, read_options=options)

    batches = data.Batches(input_fn, 10)
    for _ in range(15):
        position = next(batches).position
    expected = next(batches).features["x"].tolist()
    assert position["state_element"] > 130
    read.clear()
    continued = data.Batches(input_fn, 10, start=json.loads(json.dumps(position)))
    assert next(continued).features["x"].tolist() == expected
    assert len(read) < 40


def test_a_grain_loader_that_refuses_its_state_is_read_again(caplog):
    class Source:  # its repr is an address
        def __len__(self):
            return 200

        def __getitem__(self, i):
            return i

    kept = []

    def input_fn():
        sampler = grain.samplers.SequentialSampler(200, grain.sharding.NoSharding())
        kept.append(Source())
        return grain.DataLoader(data_source=kept[-1], sampler=sampler, worker_count=0)

    batches = data.Batches(input_fn, 10)
    for _ in range(15):
        position = next(batches).position
    with caplog.at_level("WARNING"):
        assert next(data.Batches(input_fn, 10, start=position)).features.tolist() == list(range(150, 160))
    assert "the saved state was refused" in caplog.text


def test_a_grain_map_data_set_is_shuffled_anew_each_epoch():
    dataset = grain.MapDataset.source(list(range(20))).shuffle(seed=3).map(lambda i: {"x": np.int32(i)})
    got = [b.features["x"].tolist() for b in data.Batches(dataset, 20, epochs=3)]
    assert [sorted(epoch) for epoch in got] == [list(range(20))] * 3
    assert got[0] != got[1] != got[2]


def test_a_torch_sampler_is_told_the_epoch():
    loader = FakeDataLoader(4)
    loader.sampler = FakeDistributedSampler()
    seen = [loader.sampler.epoch for _ in data.Batches(loader, 11, epochs=3)]
    assert seen == [0, 1, 2]


def test_a_torch_loader_of_unrepeatable_order_is_told_of_once(caplog):
    loader = FakeDataLoader(4)
    loader.sampler = RandomSampler()
    list(data.Batches(loader, 11, epochs=3))
    assert caplog.text.count("a continued run sees another order") == 1


def test_a_data_frame_is_its_columns():
    frame = FakeDataFrame(x=X.view(FakeColumn), name=np.array(["a"] * N, object).view(FakeColumn))
    batch = next(data.Batches((frame, Y), 4))
    np.testing.assert_array_equal(batch.features["x"], X[:4])
    assert batch.host["name"].tolist() == ["a"] * 4
    np.testing.assert_array_equal(next(data.Batches(frame, 4)).features["x"], X[:4])


def test_a_class_is_a_function_that_makes_data():
    np.testing.assert_array_equal(next(data.Batches(FakeMapDataset, 4)).labels, Y[:4])


def test_features_alone_and_other_trees():
    assert next(data.Batches(X, 4)).features.shape == (4, 3)
    pair = next(data.Batches((X, Y), 4))
    np.testing.assert_array_equal(pair.labels, Y[:4])
    three = next(data.Batches(((X, Y, X), None), 4))
    assert [leaf.shape for leaf in three.features] == [(4, 3), (4,), (4, 3)]
    assert three.labels is None
    nested = next(data.Batches([{"a": {"b": 1.0, "c": (2, [3.0, 4.0])}, "n": None}] * 4, 4)).features
    np.testing.assert_array_equal(nested["a"]["c"][1], [[3, 4]] * 4)
    assert nested["n"] is None
    assert next(data.Batches(data.examples([(X[0],)] * 4), 4)).features.shape == (4, 3)
    labels = next(data.Batches(([X, X], {"p": Y, "q": Y}), 4))
    assert labels.features[0].shape == (4, 3)
    assert set(labels.labels) == {"p", "q"}


def test_a_model_of_two_inputs_keeps_both_where_labels_are_not_wanted():
    spec = data.Batches(((X, Y), Y), 4).spec
    batch = next(data.Batches((X, Y), 4, spec=spec, labels_expected=False))
    assert [leaf.shape for leaf in batch.features] == [(4, 3), (4,)]


def test_a_model_of_three_inputs_without_labels_takes_a_tuple_of_three():
    spec = data.Batches(((X, Y, X), None), 4).spec
    batch = next(data.Batches((X, Y, X), 4, spec=spec))
    assert [leaf.shape for leaf in batch.features] == [(4, 3), (4,), (4, 3)]

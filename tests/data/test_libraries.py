"""The real torch, tf.data and Grain, where they are installed: rows, order, marks, resume and refusals."""

import itertools
import json

import numpy as np
import pytest

from systolic import data
from systolic._errors import InputError

N = 11
X = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
Y = np.arange(N, dtype=np.int32) * 10


def check_rows(source, caplog, feature="x"):
    """All rows once, in order, with nothing guessed; and a run continued at any point sees what it would have seen."""
    batches = list(data.Batches(source, 4, tail="pad", epochs=1))
    pick = (lambda batch: batch.features) if feature is None else (lambda batch: batch.features[feature])
    np.testing.assert_array_equal(np.concatenate([pick(b)[b.mask] for b in batches]), X)
    np.testing.assert_array_equal(np.concatenate([b.labels[b.mask] for b in batches]), Y)
    assert "was read as" not in caplog.text
    undisturbed = list(itertools.islice(data.Batches(source, 3), 9))
    for after in (0, 2, 5):
        start = json.loads(json.dumps(undisturbed[after].position))
        for expected, got in zip(undisturbed[after + 1 :], data.Batches(source, 3, start=start)):
            np.testing.assert_array_equal(pick(got), pick(expected))
            np.testing.assert_array_equal(got.labels, expected.labels)


class TestTorch:
    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch")

    @pytest.fixture
    def by_number(self, torch):
        class ByNumber(torch.utils.data.Dataset):
            def __len__(self):
                return N

            def __getitem__(self, i):
                return {"x": torch.tensor(X[i])}, int(Y[i])

        return ByNumber()

    @pytest.fixture
    def one_by_one(self, torch):
        class OneByOne(torch.utils.data.IterableDataset):
            def __iter__(self):
                return (({"x": x}, y) for x, y in zip(X, Y))

        return OneByOne()

    @pytest.mark.parametrize("batch_size", [1, 4, None])
    def test_loader_of_dicts(self, torch, by_number, batch_size, caplog):
        check_rows(torch.utils.data.DataLoader(by_number, batch_size=batch_size, num_workers=0), caplog)

    @pytest.mark.parametrize("batch_size", [4, None])
    def test_loader_of_an_iterable_data_set(self, torch, one_by_one, batch_size, caplog):
        check_rows(torch.utils.data.DataLoader(one_by_one, batch_size=batch_size), caplog)

    def test_loader_of_pairs(self, torch, caplog):
        dataset = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
        check_rows(torch.utils.data.DataLoader(dataset, batch_size=4), caplog, feature=None)

    def test_data_sets_without_a_loader(self, by_number, one_by_one, caplog):
        check_rows(by_number, caplog)
        check_rows(one_by_one, caplog)

    def test_loader_of_three_tensors_is_refused(self, torch):
        dataset = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y), torch.tensor(Y))
        with pytest.raises(InputError, match=r"list of 3 seen; features, or a pair \(features, labels\), wanted"):
            next(data.Batches(torch.utils.data.DataLoader(dataset, batch_size=4), 4))

    def test_loader_that_shuffles_is_cautioned_about(self, torch, by_number, caplog):
        next(data.Batches(torch.utils.data.DataLoader(by_number, batch_size=4, shuffle=True), 4))
        assert "a continued run sees another order" in caplog.text

    def test_distributed_sampler_is_told_the_epoch_and_continues(self, torch, by_number):
        sampler = torch.utils.data.DistributedSampler(by_number, num_replicas=1, rank=0, shuffle=True, seed=3)
        loader = torch.utils.data.DataLoader(by_number, batch_size=4, sampler=sampler)
        epochs = list(itertools.islice(data.Batches(loader, N), 3))
        assert all(sorted(epoch.labels.tolist()) == Y.tolist() for epoch in epochs)
        assert epochs[0].labels.tolist() != epochs[1].labels.tolist()
        again = next(data.Batches(loader, N, start=json.loads(json.dumps(epochs[0].position))))
        np.testing.assert_array_equal(again.labels, epochs[1].labels)

    def test_tensors_that_are_not_dense_are_refused(self, torch):
        with pytest.raises(InputError, match=r"feature 'x': a Tensor seen, a dense array"):
            next(data.Batches({"x": torch.tensor(X).to_sparse()}, 4))

    def test_dtypes(self, torch):
        batch = next(
            data.Batches({"half": torch.zeros(4, 2, dtype=torch.bfloat16), "grad": torch.ones(4).requires_grad_()}, 4)
        )
        assert {name: leaf.dtype.name for name, leaf in batch.features.items()} == {
            "half": "bfloat16",
            "grad": "float32",
        }
        with pytest.raises(InputError, match=r"feature 'x': a Tensor seen that does not become a NumPy array"):
            next(data.Batches({"x": torch.ones(4, dtype=torch.complex64).conj()}, 4))


class TestTensorFlow:
    @pytest.fixture
    def tf(self):
        return pytest.importorskip("tensorflow")

    @pytest.mark.parametrize("batch_size", [None, 1, 4])
    @pytest.mark.parametrize("how", ["object", "function"])
    def test_pipelines_of_dicts(self, tf, batch_size, how, caplog):
        def input_fn():
            dataset = tf.data.Dataset.from_tensor_slices(({"x": X}, Y))
            return dataset if batch_size is None else dataset.batch(batch_size).prefetch(2)

        check_rows(input_fn if how == "function" else input_fn(), caplog)

    def test_pipelines_of_pairs(self, tf, caplog):
        check_rows(tf.data.Dataset.from_tensor_slices((X, Y)).batch(4), caplog, feature=None)

    def test_pipeline_of_full_batches_continues(self, tf):
        dataset = tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(4, drop_remainder=True)
        batches = list(itertools.islice(data.Batches(data.batches(dataset), 4), 4))
        np.testing.assert_array_equal(batches[1].labels, Y[4:8])
        np.testing.assert_array_equal(batches[2].labels, Y[:4])

    def test_strings_stay_on_the_host(self, tf):
        dataset = tf.data.Dataset.from_tensor_slices({"x": X, "name": [f"row {i}" for i in range(N)]}).batch(4)
        batch = next(data.Batches(dataset, 4))
        assert batch.host["name"].tolist() == [b"row 0", b"row 1", b"row 2", b"row 3"]

    def test_ragged_tensors_are_refused(self, tf):
        ragged = tf.data.Dataset.from_tensor_slices(({"ids": tf.ragged.constant([[1, 2], [3], [4, 5]])}, Y[:3]))
        with pytest.raises(
            InputError, match=r"feature 'ids' of example 1: shape \(1,\) seen, \(2,\) expected.*pad or crop"
        ):
            list(data.Batches(ragged, 3, epochs=1))
        with pytest.raises(InputError, match=r"feature 'ids'.* ragged"):
            next(data.Batches(ragged.batch(3), 3))

    def test_sparse_tensors_arrive_dense(self, tf):
        sparse = tf.data.Dataset.from_tensor_slices(({"ids": tf.sparse.from_dense([[1, 0], [0, 2]])}, Y[:2]))
        np.testing.assert_array_equal(next(data.Batches(sparse, 2)).features["ids"], [[1, 0], [0, 2]])
        with pytest.raises(InputError, match=r"features: a SparseTensor seen, a dense array"):
            next(data.Batches([(tf.sparse.from_dense([[1, 0], [0, 2]]), 1)], 2))

    @pytest.mark.parametrize(("options", "told"), [({}, True), ({"seed": 3}, False)])
    def test_a_shuffle_without_a_seed_is_cautioned_about(self, tf, options, told, caplog):
        def input_fn():
            return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).shuffle(N, **options).batch(4).prefetch(1)

        batches = list(itertools.islice(data.Batches(input_fn, 4), 5))
        assert ("shuffles without a seed" in caplog.text) == told
        if not told:
            continued = data.Batches(input_fn, 4, start=json.loads(json.dumps(batches[3].position)))
            np.testing.assert_array_equal(next(continued).labels, batches[4].labels)


class TestGrain:
    @pytest.fixture
    def grain(self):
        return pytest.importorskip("grain")

    @pytest.mark.parametrize("kind", ["map", "map of batches", "iter", "filtered iter", "loader"])
    def test_shuffled_data_sets_continue_exactly_across_epochs(self, grain, kind):
        class Source:
            def __repr__(self):
                return "Source"

            def __len__(self):
                return N

            def __getitem__(self, i):
                return {"x": X[i]}, Y[i]

        def input_fn(epoch):
            dataset = grain.MapDataset.source(Source()).seed(5).shuffle()
            if kind == "loader":
                sampler = grain.samplers.IndexSampler(
                    N, shard_options=grain.sharding.NoSharding(), shuffle=True, seed=epoch, num_epochs=1
                )
                return grain.DataLoader(data_source=Source(), sampler=sampler, worker_count=0)
            return {
                "map": dataset,
                "map of batches": dataset.batch(4),
                "iter": dataset.to_iter_dataset().map(lambda row: row),
                "filtered iter": dataset.to_iter_dataset().filter(lambda row: row[1] >= 0),
            }[kind]

        undisturbed = list(itertools.islice(data.Batches(input_fn, 3), 9))
        assert sorted(np.concatenate([b.labels for b in undisturbed])[:N].tolist()) == Y.tolist()
        for after in range(8):
            continued = data.Batches(input_fn, 3, start=json.loads(json.dumps(undisturbed[after].position)))
            for expected, got in zip(undisturbed[after + 1 :], continued):
                np.testing.assert_array_equal(got.labels, expected.labels)
                np.testing.assert_array_equal(got.features["x"], expected.features["x"])

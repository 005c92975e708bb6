"""Re-chunking: what goes in comes out, in batches of one size."""

import itertools
import json

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from systolic import data
from systolic._errors import InputError

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) > 0)


def chunks(sizes, first=0):
    """An input_fn of batches of the given sizes whose rows are numbered."""

    def input_fn():
        low = first
        for size in sizes:
            rows = np.arange(low, low + size, dtype=np.int32)
            yield {"x": rows, "y": np.stack([rows, -rows], 1).astype(np.float32)}, rows * 2
            low += size

    return data.batches(input_fn)


def numbers(batch):
    """Row numbers of the real rows of a batch or group, after checking that its leaves agree."""
    x, y = batch.features["x"], batch.features["y"]
    assert x.dtype == np.int32
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y[..., 0], x)
    np.testing.assert_array_equal(y[..., 1], -x)
    np.testing.assert_array_equal(batch.labels, x * 2)
    if isinstance(batch, data.Group):
        real = np.zeros(x.shape, bool)
        real[: batch.count] = True
        x = x[real if batch.mask is None else batch.mask]
    elif batch.mask is not None:
        x = x[batch.mask]
    assert len(x) == (batch.rows if isinstance(batch, data.Group) else batch.count)
    return x.tolist()


@hypothesis.given(SIZES, st.integers(1, 7), st.integers(1, 4), st.integers(1, 3))
@hypothesis.settings(max_examples=80, deadline=None)
def test_padded_batches_hold_every_row_of_every_epoch_once_and_in_order(sizes, batch_size, stack, epochs):
    got = []
    batches = data.Batches(chunks(sizes), batch_size, tail="pad", epochs=epochs, stack=stack)
    for batch in batches:
        lead = (batch_size,) if stack == 1 else (stack, batch_size)
        assert batch.features["x"].shape == lead
        assert batch.features["y"].shape == (*lead, 2)
        assert batch.mask.shape == lead
        got += numbers(batch)
    assert got == list(range(sum(sizes))) * epochs


@hypothesis.given(SIZES, st.integers(1, 7), st.integers(1, 4))
@hypothesis.settings(max_examples=80, deadline=None)
def test_carried_tails_join_the_next_epoch(sizes, batch_size, stack):
    batches = data.Batches(chunks(sizes), batch_size, stack=stack)
    got = []
    for batch in itertools.islice(batches, 12):
        assert batch.mask is None
        assert len(numbers(batch)) == batch_size * stack
        got += numbers(batch)
    endless = itertools.cycle(range(sum(sizes)))
    assert got == list(itertools.islice(endless, 12 * batch_size * stack))


@hypothesis.given(SIZES, st.integers(1, 7), st.integers(1, 4), st.integers(1, 3))
@hypothesis.settings(max_examples=80, deadline=None)
def test_dropped_tails_are_those_that_do_not_fill_a_batch(sizes, batch_size, stack, epochs):
    hypothesis.assume(sum(sizes) >= batch_size)
    batches = data.Batches(chunks(sizes), batch_size, tail="drop", epochs=epochs, stack=stack)
    got = [number for batch in batches for number in numbers(batch)]
    whole = sum(sizes) // batch_size * batch_size
    assert got == list(range(whole)) * epochs


@hypothesis.given(SIZES, st.integers(1, 7), st.sampled_from(["carry", "drop", "pad"]), st.integers(1, 3), st.data())
@hypothesis.settings(max_examples=120, deadline=None)
@pytest.mark.parametrize("kind", ["batches", "examples", "arrays", "shuffled arrays", "shuffle buffer"])
def test_every_position_continues_bit_for_bit(kind, sizes, batch_size, tail, stack, draw):
    total = sum(sizes)
    hypothesis.assume(tail != "drop" or total >= batch_size)
    rows = np.arange(total, dtype=np.int32)
    tree = {"x": rows, "y": np.stack([rows, -rows], 1).astype(np.float32)}, rows * 2

    def one_by_one():
        for i in range(total):
            yield {"x": rows[i], "y": tree[0]["y"][i]}, rows[i] * 2

    source = {
        "batches": chunks(sizes),
        "examples": data.examples(one_by_one),
        "arrays": tree,
        "shuffled arrays": data.arrays(*tree, shuffle=5),
        "shuffle buffer": data.shuffle(chunks(sizes), 4, seed=3),
    }[kind]
    options = {"tail": tail, "stack": stack}
    undisturbed = list(itertools.islice(data.Batches(source, batch_size, **options), 10))
    stop = draw.draw(st.integers(0, 9))
    position = json.loads(json.dumps(undisturbed[stop].position))
    continued = data.Batches(source, batch_size, start=position, **options)
    for expected, got in zip(undisturbed[stop + 1 :], continued):
        assert numbers(got) == numbers(expected)
        np.testing.assert_array_equal(got.features["x"], expected.features["x"])
        assert got.position == expected.position


def test_a_group_of_asked_size_keeps_its_static_shape():
    batches = data.Batches(chunks([10, 10, 10]), 4, stack=5)
    group = batches.next_group(2)
    assert (group.count, group.rows) == (2, 8)
    assert group.features["x"].shape == (5, 4)
    np.testing.assert_array_equal(group.features["x"][:2].ravel(), np.arange(8))
    np.testing.assert_array_equal(group.features["x"][2:], np.tile(np.arange(4), (3, 1)))
    np.testing.assert_array_equal(batches.next_group(1).features["x"][0], [8, 9, 10, 11])
    with pytest.raises(InputError, match=r"k: 6 seen, .* from 1 to stack=5"):
        batches.next_group(6)


def test_a_group_of_one_batch_has_a_leading_dimension_of_one():
    group = data.Batches(chunks([3]), 3).next_group(1)
    assert group.features["y"].shape == (1, 3, 2)


def test_the_last_group_is_short_and_says_so():
    groups = list(data.Batches(chunks([7]), 2, tail="pad", epochs=1, stack=3))
    assert [(group.count, group.rows) for group in groups] == [(3, 6), (1, 1)]
    np.testing.assert_array_equal(groups[1].mask, [[True, False], [False, False], [False, False]])


def test_padding_repeats_a_real_row_of_its_own_batch():
    x = np.array([1.0, np.inf, 3.0, 7.0, 8.0], np.float32)
    *_, last = data.Batches({"x": x}, 3, tail="pad", epochs=1)
    np.testing.assert_array_equal(last.features["x"], [7.0, 8.0, 7.0])
    np.testing.assert_array_equal(last.mask, [True, True, False])


def test_read_only_batches_of_the_right_size_pass_without_a_copy_and_others_are_copied():
    x = np.zeros((4, 2), np.float32)
    batch = next(data.Batches(data.batches([{"x": x}]), 4))
    assert not np.shares_memory(batch.features["x"], x)
    x.flags.writeable = False
    batch = next(data.Batches(data.batches([{"x": x}]), 4))
    assert np.shares_memory(batch.features["x"], x)


def test_groups_never_share_memory():
    batches = data.Batches(chunks([4] * 8), 4, stack=2)
    first, second = next(batches), next(batches)
    assert not np.shares_memory(first.features["x"], second.features["x"])
    np.testing.assert_array_equal(first.features["x"].ravel(), np.arange(8))


def test_a_view_of_the_users_array_cannot_be_written():
    x = np.zeros(8, np.float32)
    batch = next(data.Batches({"x": x}, 4))
    with pytest.raises(ValueError, match="read-only"):
        batch.features["x"][0] = 1
    x[0] = 1  # the user's own array still can


def test_shuffled_epochs_are_permutations_that_differ_and_repeat():
    def epochs(seed):
        batches = data.Batches(data.arrays({"x": np.arange(20, dtype=np.int32)}, shuffle=seed), 10)
        return [np.concatenate([next(batches).features["x"] for _ in range(2)]).tolist() for _ in range(2)]

    first, second = epochs(1)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    assert epochs(1) == [first, second]
    assert epochs(2)[0] != first


def test_a_shuffle_buffer_gives_every_row_once_in_an_order_free_of_the_batch_size():
    def order(batch_size, epochs=1):
        source = data.shuffle(chunks([7, 30, 1, 62]), buffer=16, seed=9)
        batches = data.Batches(source, batch_size, tail="pad", epochs=epochs)
        return [number for batch in batches for number in numbers(batch)]

    assert sorted(order(10)) == list(range(100))
    assert order(10) == order(7) == order(100)
    assert order(10) != list(range(100))
    assert order(10, epochs=2)[100:] != order(10)


def test_peeking_loses_nothing_of_a_one_shot_generator():
    batches = data.Batches(({"x": np.float32(i)} for i in range(4)), 2, epochs=1)
    assert batches.peek().features["x"].shape == ()
    assert [batch.features["x"].tolist() for batch in batches] == [[0, 1], [2, 3]]
    assert batches.spec.features["x"].dtype_host == np.float32


def test_peeking_does_not_move_the_position():
    batches = data.Batches(chunks([3, 3]), 2)
    batches.peek()
    assert batches.position == {"epoch": 0, "element": 0, "row": 0, "example": 0}


def test_positions_tell_what_was_consumed():
    batches = data.Batches(chunks([3, 5]), 4)
    assert next(batches).position == {"epoch": 0, "element": 1, "row": 1, "example": 4}
    assert next(batches).position == {"epoch": 0, "element": 2, "row": 0, "example": 8}
    assert next(batches).position == {"epoch": 1, "element": 1, "row": 1, "example": 4}


def test_input_fn_is_called_anew_each_epoch_and_told_which():
    calls = []

    def input_fn(epoch):
        calls.append(epoch)
        return {"x": np.full(2, epoch, np.int32)}

    got = [batch.features["x"].tolist() for batch in data.Batches(input_fn, 2, epochs=3)]
    assert calls == [0, 1, 2]
    assert got == [[0, 0], [1, 1], [2, 2]]


def test_data_in_memory_is_asked_for_once():
    calls = []

    def input_fn():
        calls.append(0)
        return {"x": np.zeros(2, np.float32)}

    assert len(list(data.Batches(input_fn, 2, epochs=3))) == 3
    assert len(calls) == 1


def test_the_end_of_the_last_epoch_tells_of_rows_left_out(caplog):
    assert len(list(data.Batches(chunks([5]), 4, epochs=1))) == 1
    assert "the last 1 examples do not fill a batch of 4" in caplog.text


def test_closing_runs_the_generators_finally():
    ended = []

    def input_fn():
        try:
            while True:
                yield {"x": np.zeros(2, np.float32)}
        finally:
            ended.append(True)

    batches = data.Batches(data.batches(input_fn), 2)
    next(batches)
    batches.close()
    assert ended == [True]
    assert list(batches) == []

"""Models: values of operations and layers, on samples and sequences, dense and sparse."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

import headrace.compat.cntk as C

SEQUENCES = [[3, 1, 4], [1], [5, 2]]


def dense(sequences: Any, size: int) -> list[Any]:
    return [np.eye(size, dtype=np.float32)[each] for each in sequences]


def test_arithmetic_broadcasts_samples_sequences_and_constants() -> None:
    x, s, w = C.input_variable((2, 2)), C.sequence.input_variable(2), C.parameter(2, 3.0)
    np.testing.assert_allclose((2 * x + [1, 3]).eval({x: [[[1, 2], [3, 4]]]}), [[[3, 7], [7, 11]]])
    found = (s * w - 1).eval({s: [np.ones((3, 2), np.float32), np.zeros((1, 2), np.float32)]})
    assert [each.tolist() for each in found] == [[[2, 2]] * 3, [[-1, -1]]]
    assert (x + 1).shape == (2, 2)
    assert (s + w).shape == (2,)
    with pytest.raises(ValueError, match="cannot be broadcast"):
        _ = x + np.ones(3, np.float32)


def test_one_hot_values_are_multiplied_without_being_made_dense() -> None:
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    for sparse in (False, True):
        x = C.sequence.input_variable(6, is_sparse=sparse)
        z = C.times(x, table)
        found = z.eval({x: C.Value.one_hot(SEQUENCES, 6)})
        matrices = z.eval({x: [scipy.sparse.csr_matrix(each) for each in dense(SEQUENCES, 6)]})
        for each, again, ids in zip(found, matrices, SEQUENCES, strict=True):
            assert np.array_equal(each, table[ids])
            assert np.array_equal(again, table[ids])
    for batch, classes in (([[11]], 10), ([[0, 1]], 1)):
        with pytest.raises(ValueError, match="out of range"):
            C.Value.one_hot(batch, num_classes=classes)


def test_a_value_shows_its_shape_and_mask() -> None:
    value = C.Value.one_hot(SEQUENCES, 6)
    assert value.shape == (3, 3, 6)
    assert value.is_sparse
    assert value.masked_count() == 3
    assert value.mask.tolist() == [[2, 1, 1], [2, 0, 0], [2, 1, 0]]
    whole = C.Value(batch=np.zeros((2, 1, 5), np.float32))
    assert whole.shape == (2, 1, 5)
    assert not whole.is_sparse
    assert whole.dtype == np.float32
    with pytest.raises(ValueError, match="a Value is made of data: give batch="):
        C.Value()
    with pytest.raises(ValueError, match="num_classes= is one number"):
        C.Value.one_hot(SEQUENCES, (2, 6))


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        (C.sequence.last, [[4, 5], [7, 8], [11, 13]]),
        (C.sequence.first, [[0, 1], [7, 8], [9, 10]]),
        (C.sequence.reduce_sum, [[6, 9], [7, 8], [20, 23]]),
    ],
)
def test_sequences_come_to_one_value(op: Any, wanted: Any) -> None:
    data = [np.array([[0, 1], [2, 3], [4, 5]]), np.array([[7, 8]]), np.array([[9, 10], [11, 13]])]
    x = C.sequence.input_variable(2)
    np.testing.assert_allclose(op(x).eval({x: data}), wanted)


def test_sequences_are_shifted() -> None:
    data = [np.array([[1], [2], [3]]), np.array([[4], [5]])]
    x = C.sequence.input_variable(1)
    assert [e.ravel().tolist() for e in C.sequence.past_value(x).eval({x: data})] == [[0, 1, 2], [0, 4]]
    assert [e.ravel().tolist() for e in C.sequence.future_value(x, 9).eval({x: data})] == [[2, 3, 9], [5, 9]]


def test_losses_are_those_of_each_sample() -> None:
    x, y = C.input_variable(4), C.input_variable(4)
    data, soft = [[1.0, 2.0, 3.0, 4.0]], [[0.35, 0.15, 0.05, 0.45]]
    loss = C.cross_entropy_with_softmax(x, y)
    assert loss.shape == (1,)
    assert loss.eval({x: data, y: soft})[0, 0] == pytest.approx(1.84019, abs=1e-4)
    assert C.squared_error(x, y).eval({x: data, y: [[1, 1, 1, 1]]}).tolist() == [14]
    assert C.classification_error(x, y).eval({x: data, y: np.eye(4)[[3]]}).tolist() == [[0]]
    assert C.classification_error(x, y).eval({x: data, y: np.eye(4)[[2]]}).tolist() == [[1]]
    assert C.classification_error(x, y, topN=2).eval({x: data, y: np.eye(4)[[2]]}).tolist() == [[0]]


def test_gradients_are_those_of_the_sum() -> None:
    x = C.input_variable(2, needs_gradient=True)
    w = C.parameter(init=np.array([[1.0], [2.0]], np.float32))
    z = C.times(x, w) * C.times(x, w)
    data = np.array([[1.0, 1.0], [2.0, 0.0]], np.float32)
    np.testing.assert_allclose(z.grad({x: data}), [[6, 12], [4, 8]])
    np.testing.assert_allclose(z.grad({x: data}, wrt=[w]), [[6 + 8], [6]])


def test_an_lstm_is_that_of_torch_with_its_gates_in_cntks_order() -> None:
    torch.manual_seed(0)
    x = C.sequence.input_variable(6)
    cell = C.layers.LSTM(4)
    z = C.layers.Recurrence(cell)(x)
    w, h = cell.W.value, cell.H.value
    order = np.concatenate([np.arange(0, 4), np.arange(8, 12), np.arange(4, 8), np.arange(12, 16)])
    peer: Any = torch.nn.LSTM(6, 4, batch_first=True)
    with torch.no_grad():
        peer.weight_ih_l0.copy_(torch.tensor(w[:, order].T))
        peer.weight_hh_l0.copy_(torch.tensor(h[:, order].T))
        peer.bias_ih_l0.zero_()
        peer.bias_hh_l0.zero_()
        data = dense(SEQUENCES, 6)
        wanted = [peer(torch.tensor(each)[None])[0][0].numpy() for each in data]
    for each, other in zip(z.eval({x: data}), wanted, strict=True):
        np.testing.assert_allclose(each, other, rtol=1e-4, atol=1e-6)
    assert z.shape == (4,)
    assert [p.shape for p in z.parameters] == [(16,), (6, 16), (4, 16)]


def by_hand(cell: Any, x: Any) -> Any:
    def sigmoid(v: Any) -> Any:
        return 1 / (1 + np.exp(-v))

    h = np.zeros(3)
    for item in x:
        given, before = item @ cell.W.value + cell.b.value, h @ cell.H.value
        update, reset = sigmoid(given[:3] + before[:3]), sigmoid(given[3:6] + before[3:])
        new = np.tanh(given[6:] + (reset * h) @ cell.H1.value)
        h = (1 - update) * new + update * h
    return h


@pytest.mark.parametrize("backwards", [False, True])
def test_a_gru_is_computed_from_either_end(backwards: bool) -> None:
    x = C.sequence.input_variable(6)
    cell = C.layers.GRU(3)
    z = C.layers.Recurrence(cell, go_backwards=backwards)(x)
    end = (C.sequence.first if backwards else C.sequence.last)(z)
    data = dense(SEQUENCES, 6)
    found = end.eval({x: data})
    wanted = [by_hand(cell, each[::-1] if backwards else each) for each in data]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_a_step_of_ones_own_recurs_over_what_it_has_made() -> None:
    x = C.sequence.input_variable(1)
    total = C.layers.Recurrence(lambda state, item: state + item)(x)
    data = [np.array([[1.0], [2.0], [3.0]]), np.array([[5.0]])]
    assert [each.ravel().tolist() for each in total.eval({x: data})] == [[1, 3, 6], [5]]
    folded = C.layers.Fold(C.plus, initial_state=10)(x)
    assert folded.eval({x: data}).ravel().tolist() == [16, 15]
    dense_step = C.layers.Dense(2)
    found = C.layers.Recurrence(lambda h, item: C.tanh(dense_step(item) + h), initial_state=C.constant(0, (2,)))(x)
    assert [each.shape for each in found.eval({x: data})] == [(3, 2), (1, 2)]


def test_layers_infer_their_sizes_and_share_their_parameters() -> None:
    layer = C.layers.Dense(5, activation=C.relu, name="mine")
    assert layer.W.shape == (-1, 5)
    one, other = layer(C.input_variable(3)), layer(C.input_variable(3))
    assert layer.W.shape == (3, 5)
    assert layer.b.value.tolist() == [0] * 5
    assert set(one.parameters) == set(other.parameters) == {layer.W, layer.b}
    assert one.name == "mine"
    assert one.shape == (5,)
    tall = C.layers.Dense((2, 4))(C.input_variable((3, 7)))
    assert tall.shape == (2, 4)
    assert tall.parameters[0].shape == (3, 7, 2, 4)
    mapped = C.layers.Dense(4, map_rank=1)(C.input_variable((3, 7)))
    assert mapped.shape == (3, 4)
    assert mapped.parameters[0].shape == (7, 4)


def test_an_embedding_is_a_table() -> None:
    table = [[0.5, 0.3], [0.7, 0.6], [0.1, 0.2]]
    x = C.input_variable(3, is_sparse=True)
    fixed = C.layers.Embedding(weights=table)(x)
    found = fixed.eval({x: C.Value.one_hot([[1], [0]], 3)})
    np.testing.assert_allclose(found, [table[1], table[0]], rtol=1e-6)
    assert fixed.parameters == ()
    assert C.layers.Embedding(4)(x).parameters[0].shape == (3, 4)
    with pytest.raises(ValueError, match="output shape must be specified"):
        C.layers.Embedding()


def test_defaults_of_layers_may_be_set_for_a_block() -> None:
    with C.layers.default_options(bias=False, init=C.constant_initializer(2), activation=C.negate):
        layer = C.layers.Dense(1)
    assert layer.b is None
    assert layer(C.input_variable(1)).eval([[3.0]]).tolist() == [[-6]]
    with C.layers.default_options(init=C.constant_initializer(2)):
        assert C.layers.LSTM(2).H.value.tolist() == [[2] * 8] * 2
    for cell in (C.layers.LSTM, C.layers.GRU, C.layers.RNNStep):
        assert cell(2).op_name == cell.__name__
        refused = pytest.raises(ValueError, match=f"^{cell.__name__}: enable_self_stabilization= is not offered")
        with C.layers.default_options(enable_self_stabilization=True), refused:
            cell(2)


def test_shapes_are_changed_by_axes() -> None:
    x = C.input_variable((2, 3))
    data = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    for node, wanted in (
        (C.reduce_sum(x, 0), data.sum(1, keepdims=True)),
        (C.reduce_mean(x, -1, keepdims=False), data.mean(2)),
        (C.reduce_max(x), data.max((1, 2))),
        (C.reshape(x, (3, -1)), data.reshape(1, 3, 2)),
        (C.slice(x, 1, 1, 0), data[:, :, 1:]),
        (x[1, 0:2], data[:, 1:2, 0:2]),
        (C.argmax(x, 1), [[[2], [2]]]),
        (C.softmax(x), torch.tensor(data).softmax(-1)),
        (C.reduce_sum(x, C.Axis.all_axes()), 15),
    ):
        found = node.eval({x: data})
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert node.shape == (found.shape[1:] if node.kind else found.shape)
    with pytest.raises(ValueError, match="axis 5 is out of range"):
        C.reduce_sum(x, 5)
    with pytest.raises(ValueError, match="strides= other than 1"):
        _ = x[0:2:2]


def test_slices_count_from_the_end_where_they_are_negative() -> None:
    x = C.input_variable((2, 3))
    data = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    for node, wanted in (
        (C.slice(x, 0, 0, -1), data[:, :-1]),
        (x[0:-1], data[:, :-1]),
        (C.slice(x, 1, -2, -1), data[:, :, -2:-1]),
        (C.slice(x, [0, 1], [0, 1], [-1, 3]), data[:, :-1, 1:3]),
    ):
        np.testing.assert_array_equal(node.eval({x: data}), wanted)
        assert node.shape == wanted.shape[1:]
    for begin, end in ((0, 4), (2, 1), (-4, 0), (0, -3)):
        with pytest.raises(ValueError, match=f"{begin} to {end} is no part of an axis of size 3"):
            C.slice(x, 1, begin, end)


def test_a_seed_of_dropout_is_refused_rather_than_ignored() -> None:
    x = C.input_variable(3)
    for make in (lambda: C.dropout(x, 0.5, seed=7), lambda: C.layers.Dropout(0.5, seed=7)(x)):
        with pytest.raises(ValueError, match="seed= of dropout is not offered"):
            make()  # type: ignore[no-untyped-call]


def test_graphs_are_applied_to_other_inputs_and_combined() -> None:
    x = C.input_variable(2, name="x")
    z = C.layers.Dense(3, name="top")(x)
    assert z.arguments == (x,)
    other = C.input_variable(2)
    shared = z(other)
    assert shared.parameters == z.parameters
    assert shared.arguments == (other,)
    data = np.ones((1, 2), np.float32)
    np.testing.assert_allclose(shared.eval(data), z(data))
    for name, advice in (("clone", "Make the function again"), ("find_by_name", "Keep the function")):
        with pytest.raises(AttributeError, match=f"no attribute '{name}' here. {advice}"):
            getattr(z, name)
    both = C.combine(z, z * 2)
    assert [v.shape for v in both.outputs] == [(3,), (3,)]
    np.testing.assert_allclose(both.eval(data)[both.outputs[1]], 2 * z.eval(data))


def test_states_of_the_minibatch_before_are_refused() -> None:
    x = C.sequence.input_variable(6)
    z = C.sequence.last(x)
    with pytest.raises(ValueError, match="seq_starts"):
        z.eval(({x: C.Value.one_hot(SEQUENCES, 6)}, [True] * 3))
    with pytest.raises(ValueError, match="no sequences"):
        C.sequence.last(C.input_variable(2))
    with pytest.raises(ValueError, match="was given sequences of up to 3"):
        C.input_variable(6) and C.relu(y := C.input_variable(6)).eval({y: C.Value.one_hot(SEQUENCES, 6)})

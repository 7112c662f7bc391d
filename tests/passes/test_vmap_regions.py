"""vmap: the compiled program computes what eager does, and a mask made by vmap is understood."""

import pytest
import torch
import torch.nn.functional as F

import npu_compile
from npu_compile.passes.normalise import NormaliseError, normalise


def compiled(function, *args, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend="ascend_fia", **options)(*args)


def vmapped_mask(predicate, batch, heads, q_len, k_len):
    """A (B, N, Q, K) mask from a predicate over scalar indices, one vmap for each."""
    function = predicate
    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        function = torch.vmap(function, in_dims=dims, out_dims=0)
    return function(*(torch.arange(size) for size in (batch, heads, q_len, k_len)))


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("predicate", "sparse_mode"),
    [
        (lambda b, h, q, k: k <= q, 3),
        (lambda b, h, q, k: (k <= q) & (k > q - 5), 4),
    ],
    ids=["causal", "sliding"],
)
def test_a_mask_made_by_vmap_is_understood(predicate, sparse_mode):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=vmapped_mask(predicate, 2, 1, 17, 17))

    q, k, v = (random(2, 4, 17, 16) for _ in range(3))
    torch.testing.assert_close(compiled(attend, q, k, v), attend(q, k, v), atol=1e-5, rtol=0)
    (site,) = npu_compile.last_report().sites
    assert site.sparse_mode == sparse_mode


def test_padding_looked_up_under_vmap_reaches_the_operator():
    def attend(q, k, v, padding):
        mask = vmapped_mask(lambda b, h, i, j: padding[b, j] & (j <= i), 2, 1, 17, 17)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    padding = torch.ones(2, 17, dtype=torch.bool)
    padding[1, 12:] = False
    q, k, v = (random(2, 4, 17, 16) for _ in range(3))
    got = compiled(attend, q, k, v, padding)
    torch.testing.assert_close(got, attend(q, k, v, padding), atol=1e-5, rtol=0)
    (site,) = npu_compile.last_report().sites
    assert site.op is not None


def test_other_uses_of_vmap_are_left_as_they_compute():
    weight = random(3, 5)

    def per_row(x):
        doubled = torch.vmap(lambda row: F.softmax(row @ weight, -1) * torch.tensor(2.0))(x)
        nested = torch.vmap(torch.vmap(lambda a: a.sin() + 1))(x)
        return doubled.sum() + nested, torch.vmap(lambda row: (row, row.sum()), out_dims=(1, 0))(x)

    x = random(4, 3)
    expected_sum, expected = per_row(x)
    got_sum, got = compiled(per_row, x)
    torch.testing.assert_close(got_sum, expected_sum)
    torch.testing.assert_close(got, expected)


def test_a_write_under_vmap_still_writes():
    def fill(x):
        torch.vmap(lambda row: row.mul_(3))(x)
        return x + 1

    x, y = random(4, 3), random(4, 3)
    torch.testing.assert_close(compiled(fill, x), fill(y))
    torch.testing.assert_close(x, y)


def test_dynamic_sizes():
    def scores(x):
        return torch.vmap(lambda row: row.cumsum(0) / row.shape[0])(x)

    run = torch.compile(scores, backend="ascend_fia", dynamic=True)
    for rows, columns in ((2, 17), (5, 54)):
        x = random(rows, columns)
        torch.testing.assert_close(run(x), scores(x))


def test_an_error_under_vmap_leaves_no_level_open():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.zeros(3, 2)
    graph.call_function(torch._C._functorch._vmap_increment_nesting, (3, "error"))
    row = graph.call_function(torch._C._functorch._add_batch_dim, (x, 0, 1))
    graph.call_function(torch.matmul, (row, torch.zeros(7)))
    graph.call_function(torch._C._functorch._vmap_decrement_nesting, ())
    graph.output((x,))
    level = torch._C._functorch.maybe_current_level()
    with pytest.raises(NormaliseError, match="under vmap"):
        normalise(torch.fx.GraphModule({}, graph), [torch.zeros(3, 2)])
    assert torch._C._functorch.maybe_current_level() == level


def test_another_function_transform_is_left_as_it_is():
    def gradient(x):
        return torch.func.grad(lambda y: (y**3).sum())(x)

    x = random(5)
    torch.testing.assert_close(compiled(gradient, x), 3 * x**2)

"""Bad and degenerate input gives what eager gives: the same tensor, or an error that says what is wrong."""

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn.functional import scaled_dot_product_attention as sdpa

from npu_compile import AscendFiaError, last_report

NAN, INF = float("nan"), float("inf")


def softmax_attention(q, k, v, scale=0.25, mask=None):
    scores = q @ k.transpose(-1, -2) * scale
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1) @ v


FORMS = [pytest.param(sdpa, id="sdpa"), pytest.param(softmax_attention, id="softmax")]


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def heads(batch=2, query=17, key=54, q_heads=4, kv_heads=4, dim=16):
    shapes = [(batch, q_heads, query, dim), *2 * [(batch, kv_heads, key, dim)]]
    return [torch.randn(shape) for shape in shapes]


def compiled(function, **keywords):
    return torch.compile(function, backend="ascend_fia", **keywords)


def assert_same(function, *args, **kwargs):
    expected = function(*args, **kwargs)
    found = compiled(function)(*args, **kwargs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert found.dtype == expected.dtype


def assert_both_refuse(function, *args, says, **kwargs):
    refusals = (RuntimeError, ValueError, IndexError)
    with pytest.raises(refusals):
        function(*args, **kwargs)
    with pytest.raises(refusals, match=says):
        compiled(function)(*args, **kwargs)


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        (
            {"options": {"captrue": True}},
            r"options\['captrue'\]=True: unknown option \(did you mean",
        ),
        ({"options": {"capture": "yes"}}, r"options\['capture'\]='yes': str is not a bool; allowed: True or"),
        ({"options": {"target": "a100"}}, r"options\['target'\]='a100': not one of them.*'ascend910b'"),
        ({"mode": "fastest"}, r"mode='fastest': unknown mode; allowed: 'default'"),
    ],
)
def test_a_bad_option_is_an_error_at_the_first_call(keywords, says):
    with pytest.raises(BackendCompilerFailed, match=says) as caught:
        compiled(softmax_attention, **keywords)(*heads())
    assert isinstance(caught.value.inner_exception, AscendFiaError)


def test_strict_turns_what_is_left_into_an_error():
    q, k, v = heads()

    def dropped(q, k, v):
        return sdpa(q, k, v, dropout_p=0.5)

    with pytest.raises(BackendCompilerFailed, match=r"options\['strict'\]=True: .*dropout"):
        compiled(dropped, options={"strict": True})(q, k, v)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [NAN, INF, 0.0, -0.5])
def test_odd_scales(form, scale):
    assert_same(form, *heads(), scale=scale)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(0, 17, 54), (2, 0, 54), (2, 17, 0), (2, 0, 0), (0, 0, 0), (1, 1, 1)])
def test_empty_batches_and_sequences(form, shape):
    assert_same(form, *heads(*shape))


@pytest.mark.parametrize("causal", [False, True])
def test_empty_keys_with_a_mask(causal):
    q, k, v = heads(2, 17, 0)
    if causal:
        assert_same(sdpa, q, k, v, is_causal=True)
    else:
        assert_same(sdpa, q, k, v, attn_mask=torch.ones(17, 0, dtype=torch.bool))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("value", [NAN, INF])
def test_values_that_are_not_finite(form, where, value):
    values = heads()
    values[where][1, 2, 5, 3] = value
    assert_same(form, *values)


@pytest.mark.parametrize(
    "shape", [(54,), (17, 53), (16, 54), (3, 1, 17, 54), (2, 3, 17, 54), (5, 2, 4, 17, 54)]
)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_mask_of_an_impossible_shape(shape, dtype):
    mask = torch.ones(shape, dtype=dtype)
    assert_both_refuse(sdpa, *heads(), mask, says=r"(?i)size|shape|expand|broadcast|dim")


@pytest.mark.parametrize("shape", [(1, 54), (17, 1), (2, 1, 1, 54), (1, 4, 17, 1)])
def test_a_mask_that_broadcasts(shape):
    mask = torch.rand(shape) > 0.3
    assert_same(sdpa, *heads(), mask)


def test_a_mask_of_integers():
    mask = torch.ones(17, 54, dtype=torch.int64)
    assert_both_refuse(sdpa, *heads(), mask, says=r"(?i)dtype|bool")


def test_a_mask_and_is_causal():
    """torch refuses the two together on some devices; on the CPU both apply."""
    mask = torch.rand(17, 54) > 0.3
    mask[:, 0] = True
    assert_same(sdpa, *heads(), mask, is_causal=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", [0, 1, 2])
def test_mismatched_devices(form, where):
    values = heads()
    values[where] = values[where].to("meta")
    with pytest.raises(RuntimeError, match=r"(?i)same device"):
        compiled(form)(*values)


def test_a_mask_on_another_device():
    mask = torch.ones(17, 54, dtype=torch.bool, device="meta")
    with pytest.raises(RuntimeError, match=r"(?i)same device"):
        compiled(sdpa)(*heads(), mask)


@pytest.mark.parametrize("form", FORMS)
def test_mismatched_dtypes(form):
    q, k, v = heads()
    assert_both_refuse(form, q, k.half(), v, says=r"(?i)dtype|type")


@pytest.mark.parametrize("form", FORMS)
def test_mismatched_head_dims(form):
    q, _, v = heads()
    _, k, _ = heads(dim=12)
    assert_both_refuse(form, q, k, v, says=r"(?i)size|shape|dim|expected")


def test_keys_and_values_of_different_lengths():
    q, k, _ = heads()
    _, _, v = heads(key=53)
    assert_both_refuse(softmax_attention, q, k, v, says=r"(?i)size|shape|length|expected")


def test_keys_and_values_of_different_lengths_are_not_lowered():
    """SDPA itself doesn't check this on the CPU: it must stay SDPA's to answer for."""
    q, k, _ = heads()
    _, _, v = heads(key=55)
    compiled(sdpa)(q, k, v)
    (site,) = last_report().left
    assert "55" in site.reason and "54" in site.reason


def test_query_heads_that_are_no_multiple_of_key_heads():
    values = heads(q_heads=4, kv_heads=3)
    assert_both_refuse(sdpa, *values, says=r"(?i)head|size|divi", enable_gqa=True)


def test_different_head_dims_of_keys_and_values_are_fine():
    q, k, _ = heads()
    _, _, v = heads(dim=24)
    assert_same(sdpa, q, k, v)


def test_an_error_leaves_the_backend_usable():
    with pytest.raises(BackendCompilerFailed):
        compiled(softmax_attention, options={"strict": 1})(*heads())
    assert_same(sdpa, *heads())
    assert len(last_report().lowered) == 1

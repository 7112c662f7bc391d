import gc
import itertools
import weakref

import pytest
import torch
from torch._guards import CompileContext

from npu_compile.options import Options
from npu_compile.passes.site import SiteOutcome
from npu_compile.report import GraphReport
from npu_compile.report_log import ReportLog, traits_of

SITE = SiteOutcome("attention", "sdpa", "", "", op="ascend_fia.npu_fused_infer_attention_score")


class Recorder:
    """Compiles with dynamo alone and records each graph as the backend does."""

    def __init__(self):
        torch.compiler.reset()
        self.log = ReportLog()

    def compile(self, function, options=None, **keywords):
        def backend(gm, example_inputs):
            name = str(CompileContext.current_compile_id())
            self.log.record(GraphReport(name, (SITE,)), traits_of(gm), options or Options())
            return gm

        return torch.compile(function, backend=backend, **keywords)

    @property
    def graphs(self):
        return len(self.log.report().graphs)


@pytest.fixture
def recorder():
    return Recorder()


def model():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())


def test_nothing_compiled_is_an_empty_report(recorder):
    assert recorder.log.report().graphs == ()


def test_recompilations_of_one_model_belong_together(recorder):
    compiled = recorder.compile(model(), dynamic=False)
    for length in (17, 1, 54):
        compiled(torch.randn(length, 8))
    assert recorder.graphs == 3
    compiled(torch.randn(17, 8))
    assert recorder.graphs == 3


def test_another_model_of_the_same_class_begins_a_new_report(recorder):
    first, second = model(), model()
    recorder.compile(first)(torch.randn(3, 8))
    recorder.compile(second)(torch.randn(3, 8))
    assert recorder.graphs == 1
    # The weights tell, also where the first model is compiled again after it.
    recorder.compile(first)(torch.randn(4, 8))
    assert recorder.graphs == 1


def test_two_parts_that_share_a_weight_belong_together(recorder):
    whole = model()
    recorder.compile(lambda x: whole(x))(torch.randn(3, 8))
    recorder.compile(lambda x: whole[0](x).exp())(torch.randn(3, 8))
    assert recorder.graphs == 2


def test_other_options_begin_a_new_report(recorder):
    whole = model()
    recorder.compile(whole)(torch.randn(3, 8))
    recorder.compile(whole, Options(strict=True))(torch.randn(3, 8))
    assert recorder.graphs == 1


def test_what_follows_a_graph_break_belongs_to_the_model(recorder):
    first, last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def broken(x):
        x = first(x)
        torch._dynamo.graph_break()
        x = x.softmax(-1)
        torch._dynamo.graph_break()
        return last(x)

    recorder.compile(broken)(torch.randn(3, 8))
    assert recorder.graphs == 3


def test_functions_without_weights_are_told_apart_by_their_code(recorder):
    functions = [lambda x: x.sin(), lambda x: x.cos()]
    compiled, other = (recorder.compile(function, dynamic=False) for function in functions)
    compiled(torch.randn(3))
    compiled(torch.randn(4))
    assert recorder.graphs == 2
    other(torch.randn(3))
    assert recorder.graphs == 1


def test_no_model_is_kept_alive(recorder):
    whole = model()
    recorder.compile(whole)(torch.randn(3, 8))
    dead = [weakref.ref(value) for value in itertools.chain([whole], whole.parameters())]
    del whole
    torch.compiler.reset()
    gc.collect()
    assert recorder.graphs == 1
    assert [reference() for reference in dead] == [None] * 3


def test_a_weight_at_the_address_of_a_dead_one_is_another(recorder):
    for _ in range(5):
        recorder.log.record(GraphReport("0/0"), traits_of(torch.fx.symbolic_trace(model())), Options())
        gc.collect()
        assert recorder.graphs == 1


def test_clear_forgets(recorder):
    compiled = recorder.compile(model(), dynamic=False)
    compiled(torch.randn(3, 8))
    recorder.log.clear()
    assert recorder.graphs == 0
    compiled(torch.randn(4, 8))
    assert recorder.graphs == 1

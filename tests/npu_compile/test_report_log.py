import gc
import itertools
import weakref

import pytest
import torch
from torch import nn
from torch._guards import CompileContext

from npu_compile.options import Options
from npu_compile.passes.site import SiteOutcome
from npu_compile.report import GraphReport
from npu_compile.report_log import Origin, ReportLog, origin_of

SITE = SiteOutcome("attention", "sdpa", "", "", op="ascend_fia.npu_fused_infer_attention_score")


class Recorder:
    """Compiles with dynamo alone and records each graph as the backend does."""

    def __init__(self):
        torch.compiler.reset()
        self.log = ReportLog()

    def compile(self, function, options=None, **keywords):
        def backend(gm, example_inputs):
            name = str(CompileContext.current_compile_id())
            self.log.record(GraphReport(name, (SITE,)), origin_of(gm), options or Options())
            return gm

        return torch.compile(function, backend=backend, **keywords)

    @property
    def graphs(self):
        return len(self.log.report().graphs)


@pytest.fixture
def recorder():
    return Recorder()


def model():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU())


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


def attend(x):
    torch._dynamo.graph_break()
    return x.softmax(-1)


class Broken(nn.Module):
    """Three graphs around two graph breaks; the middle one, a function of its own, reads no weight."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.last(attend(self.first(x)))


@pytest.mark.parametrize("of", ["module", "forward"])
def test_the_parts_around_a_graph_break_belong_together(recorder, of):
    whole = Broken()
    if of == "module":
        recorder.compile(whole)(torch.randn(3, 8))
    else:
        whole.forward = recorder.compile(whole.forward)
        whole(torch.randn(3, 8))
    assert recorder.graphs == 3


def test_a_function_after_a_model_is_another_program(recorder):
    recorder.compile(Broken())(torch.randn(3, 8))
    recorder.compile(lambda x: x.sin())(torch.randn(3, 8))
    assert recorder.graphs == 1


def test_an_unknown_program_is_known_by_its_weights():
    log, weights = ReportLog(), [nn.Parameter(torch.zeros(3)) for _ in range(3)]
    for graphs, held in ((1, weights[:1]), (2, weights[:2]), (3, weights[1:]), (1, ()), (1, ())):
        log.record(GraphReport("0/0"), Origin(held), Options())
        assert len(log.report().graphs) == graphs


def test_functions_without_weights_are_told_apart(recorder):
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
        recorder.log.record(GraphReport("0/0"), Origin([nn.Parameter(torch.zeros(3))]), Options())
        gc.collect()
        assert recorder.graphs == 1


def test_clear_forgets(recorder):
    compiled = recorder.compile(model(), dynamic=False)
    compiled(torch.randn(3, 8))
    recorder.log.clear()
    assert recorder.graphs == 0
    compiled(torch.randn(4, 8))
    assert recorder.graphs == 1

"""The plan as JSON, on the terminal and as a page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

import npu_compile
from npu_compile.cli import main
from tests.npu_compile.plan.tiny import DEEPSEEK_V3, LLAMA

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
VOID = {"meta", "br"}


@pytest.fixture(scope="module")
def plan():
    return npu_compile.plan(DEEPSEEK_V3, batch=3, prompt=54, cache=97)


def test_the_command_prints_and_writes(tmp_path, capsys):
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    data, html = tmp_path / "plan.json", tmp_path / "plan.html"
    sizes = ["--batch", "3", "--prompt", "54", "--cache", "97"]
    assert main(["explain", str(folder), *sizes, "--json", str(data), "--html", str(html)]) == 0
    out = capsys.readouterr().out
    assert "tiny-llama (LlamaForCausalLM) on ascend910b, bfloat16: batch 3, prompt 54, cache 97" in out
    assert "4 of 4 attention computations lowered" in out
    found = json.loads(data.read_text())
    assert (found["batch"], found["prompt"], found["cache"]) == (3, 54, 97)
    assert [step["name"] for step in found["steps"]] == ["prefill", "decode"]
    (site,) = found["steps"][1]["sites"]
    assert site["count"] == 4 and site["layers"] == [0, 1, 2, 3] and site["lowered"]
    assert found["steps"][1]["cost"]["kv_bytes"] == 4 * site["cost"]["kv_bytes"]
    assert "tiny-llama" in html.read_text()


def test_the_table_is_no_wider_than_the_terminal(plan):
    from npu_compile.planning.table import render

    for width in (80, 110):
        assert max(map(len, render(plan, width).splitlines())) <= width


class Balance(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = []
        self.references = []

    def handle_starttag(self, tag, attributes):
        self.references += [value for name, value in attributes if name in ("src", "href", "srcset", "data")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(plan):
    page = plan.html()
    parser = Balance()
    parser.feed(page)
    assert parser.open == [] and parser.references == []
    assert not re.search(r"https?://|url\(|@import|<script", page)
    assert page.count("<svg") == 3
    for site in plan.sites:
        assert site.where in page


def test_texts_are_escaped():
    page = npu_compile.plan({**LLAMA, "_name_or_path": "<b>&"}, prompt=17).html()
    assert "&lt;b&gt;&amp;" in page and "<b>&" not in page


def browser():
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.mark.nightly
@pytest.mark.skipif(browser() is None, reason="no chromium or chrome is installed")
@pytest.mark.parametrize("width", [1280, 1024])
def test_a_browser_shows_it_without_scrolling_sideways(plan, width, tmp_path):
    """The browser itself says how wide the page is; a script is added to ask it."""
    ask = "<script>document.title = document.documentElement.scrollWidth</script></body>"
    file = tmp_path / "plan.html"
    file.write_text(plan.html().replace("</body>", ask))
    # The window is as wide as asked: headless, it has no frame.
    command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--window-size={width},900", "--dump-dom", file.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    title = re.search(r"<title>(\d+)</title>", shown)
    assert title is not None and int(title[1]) <= width

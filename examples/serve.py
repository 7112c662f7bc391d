"""An OpenAI-compatible server: transformers' own, on continuous batching with "ascend_fia".

    pip install 'transformers[serving]'
    python examples/serve.py MODEL              # a folder, or a name on the Hub
    curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \
        -d '{"model": "MODEL", "messages": [{"role": "user", "content": "Hello"}]}'

Without MODEL it serves a tiny model with random weights, which talks nonsense but needs no download.
`--check` sends it a few requests at once, prints the answers, and stops.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.utils.import_utils import is_serve_available

import npu_compile.hf

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def make_tiny_model(folder: str) -> None:
    """A byte-level tokenizer and a small Llama with random weights."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", chat_template=TEMPLATE
    )
    wrapped.save_pretrained(folder)
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=len(wrapped),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        eos_token_id=wrapped.eos_token_id,
    )
    hf.LlamaForCausalLM(config).save_pretrained(folder)


def build_app(model: str, device: str, captured: bool) -> Any:
    """transformers' server, whose models switch to "ascend_fia" once they are loaded.

    `transformers serve --attn-implementation` takes names of its own list only, so the command itself can't
    be told.
    """
    from transformers.cli.serving.chat_completion import ChatCompletionHandler
    from transformers.cli.serving.completion import CompletionHandler
    from transformers.cli.serving.model_manager import ModelManager
    from transformers.cli.serving.response import ResponseHandler
    from transformers.cli.serving.server import build_server
    from transformers.cli.serving.systemone import SystemOneHandler
    from transformers.cli.serving.transcription import TranscriptionHandler
    from transformers.cli.serving.utils import GenerationState

    class FiaModelManager(ModelManager):
        def _load_model(self, *args: Any, **kwargs: Any) -> Any:
            loaded = super()._load_model(*args, **kwargs)
            loaded.set_attn_implementation(npu_compile.hf.ATTENTION)
            return loaded

    manager = FiaModelManager(device=device, continuous_batching=True, force_model=model)
    engine = hf.ContinuousBatchingConfig(
        page_size=128,
        num_blocks=512 if device == "cpu" else None,
        max_batch_tokens=2048,
        max_requests_per_batch=64,
        decode_compile_config=hf.CompileConfig(backend="ascend_fia") if captured else None,
    )
    state = GenerationState(continuous_batching=True, cb_config=engine)
    return build_server(
        manager,
        ChatCompletionHandler(manager, state),
        CompletionHandler(manager, state),
        ResponseHandler(manager, state),
        TranscriptionHandler(manager, state),
        SystemOneHandler(manager, state),
        state,
    )


def check(server: Any, model: str, port: int) -> None:
    """Send requests at once and print what comes back."""
    from openai import OpenAI

    while not server.started:
        time.sleep(0.1)
    client = OpenAI(base_url=f"http://localhost:{port}/v1", api_key="none")

    def ask(question: str) -> tuple[str, int]:
        answer = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": question}], max_tokens=32, temperature=0
        )
        return answer.choices[0].message.content, answer.usage.completion_tokens

    questions = [f"Count to {n}, {'please ' * n}" for n in range(1, 9)]
    start = time.perf_counter()
    with ThreadPoolExecutor(len(questions)) as pool:
        answers = list(pool.map(ask, questions))
    seconds = time.perf_counter() - start
    for question, (text, tokens) in zip(questions, answers, strict=True):
        print(f"{question[:24]!r:28} {tokens:3} tokens  {text[:40]!r}")
    print(f"{sum(tokens for _, tokens in answers) / seconds:.0f} tokens/s with the first request's start-up")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?")
    parser.add_argument("--device", default="npu" if hasattr(torch, "npu") else "cpu")
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--captured", action="store_true", help="replay decode steps as captured graphs")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if not is_serve_available():
        sys.exit("the server needs more packages: pip install 'transformers[serving]'")
    import uvicorn

    npu_compile.hf.register()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.model is None:
            make_tiny_model(folder)
        model = arguments.model or folder
        app = build_app(model, arguments.device, arguments.captured)
        server = uvicorn.Server(uvicorn.Config(app, arguments.host, arguments.port, log_level="warning"))
        print(f"http://{arguments.host}:{arguments.port}/v1/chat/completions serves {model!r}")
        if not arguments.check:
            server.run()
            return
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            check(server, model, arguments.port)
        finally:
            server.should_exit = True
            thread.join()


if __name__ == "__main__":
    main()

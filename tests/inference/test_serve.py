"""A saved model over HTTP, by transformers' own server; nothing leaves this machine."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from call_command import call_command
from tiny_models import build
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from attnres.models import AttnResForCausalLM
from attnres.models.pretrained import load_pretrained

ROOT = Path(__file__).parents[2]
START_S, ANSWER_S = 300, 120
PROMPT = "b c d"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A tiny model of 97 words, saved with its tokenizer."""
    place = tmp_path_factory.mktemp("served")
    model = build(residual="block", eos_token_id=None)
    model.save_pretrained(place)
    words = {f"{chr(97 + i % 26)}{i // 26 or ''}": i for i in range(97)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="a").save_pretrained(place)
    return place


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def server(folder) -> Iterator[str]:
    """The address of a running server."""
    port = _free_port()
    command = [sys.executable, "-m", "attnres", "serve", str(folder), "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    process = subprocess.Popen(
        [*command, "--device", "cpu"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    address = f"http://localhost:{port}"
    try:
        _wait(process, address)
        yield address
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[str], address: str) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            assert process.stdout is not None
            pytest.fail(f"the server ended: {process.stdout.read()[-2000:]}")
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"no server after {START_S} s")


def _ask(address: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{address}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        return json.load(answer)


@pytest.mark.slow
def test_a_served_model_continues_a_text_as_generate_does(server, folder):
    body = {"model": str(folder), "prompt": PROMPT, "max_tokens": 6, "temperature": 0.0}
    answer = _ask(server, body)
    model, tokenizer = load_pretrained(folder)
    assert tokenizer is not None
    inputs = tokenizer(PROMPT, return_tensors="pt")
    output_BT = model.generate(inputs["input_ids"], max_new_tokens=6, do_sample=False)
    expected = tokenizer.decode(output_BT[0, inputs["input_ids"].shape[1] :])
    assert answer["choices"][0]["text"].split() == expected.split()
    assert answer["usage"]["completion_tokens"] == 6


def test_no_folder_and_no_packages_are_said_in_a_line(folder, tmp_path, monkeypatch, capsys):
    status, _, error = call_command("serve", [tmp_path], capsys)
    assert status == 2
    assert f"{tmp_path} is no folder of a saved model" in error
    from attnres.inference import serving

    monkeypatch.setattr(serving, "is_serve_available", lambda: False)
    status, _, error = call_command("serve", [folder], capsys)
    assert status == 2
    assert "pip install 'attention-residuals[serve]'" in error
    status, _, error = call_command("serve", ["--port", "8000"], capsys)
    assert status == 2
    assert "the folder of a model comes first, got --port" in error
    assert "transformers serve" in call_command("serve", ["--help"], capsys)[1]


def test_the_server_finds_the_class_that_a_config_names(folder):
    import transformers

    from attnres.inference.serving import register

    register()
    names = json.loads((folder / "config.json").read_text())["architectures"]
    assert getattr(transformers, names[0]) is AttnResForCausalLM
    assert isinstance(AutoTokenizer.from_pretrained(folder), PreTrainedTokenizerFast)

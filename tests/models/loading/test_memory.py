"""Loading takes less than 1.3 times the model's own memory, plus one tensor: measured in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from models.loading import load_model, save_native
from tests.models.loading.families import build, save
from tests.models.loading.test_gguf import llama_tensors, write

# 46 M parameters, 184 MB in float32; the largest tensor has 17 MB.
SIZES = {
    "hidden_size": 1024,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 3072,
    "vocab_size": 4096,
}

MEASURE = """
import re, sys, torch
from gguf import GGUFReader, quants
from safetensors import safe_open
from models.loading import load_model

def peak():  # not ru_maxrss, which a child process starts with its parent's
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

before = peak()
model = load_model(sys.argv[1])
growth = peak() - before
sizes = [weight.numel() * weight.element_size() for weight in model.parameters()]
print(growth, sum(sizes), max(sizes))
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc for the peak")


@pytest.fixture(scope="module")
def big():
    return build("Llama", **SIZES)


def check(source) -> None:
    run = subprocess.run([sys.executable, "-c", MEASURE, str(source)], capture_output=True, text=True, check=True)
    growth, own, largest = (int(word) for word in run.stdout.split())
    assert own > 150e6
    assert 0.9 * own < growth < 1.3 * own + largest


def test_hugging_face_folder(big, tmp_path):
    check(save(big, tmp_path / "model"))


def test_native_file(big, tmp_path):

    save_native(load_model(save(big, tmp_path / "model")), tmp_path / "native.safetensors", {})
    check(tmp_path / "native.safetensors")


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_gguf(kind, big, tmp_path):
    check(write(tmp_path / "model.gguf", "llama", big.config, llama_tensors(big, permute=True), kind))

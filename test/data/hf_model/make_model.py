"""Makes tiny/ (saved by transformers, bf16, in shards) and expected.json (its values). Needs torch and transformers."""

import json
import pathlib
import shutil

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

here = pathlib.Path(__file__).parent
shutil.rmtree(here / "tiny", ignore_errors=True)
torch.manual_seed(1)
model = Qwen2ForCausalLM(Qwen2Config(hidden_size=8, intermediate_size=6, num_hidden_layers=1, num_attention_heads=2,
                                     num_key_value_heads=1, vocab_size=11))
with torch.no_grad():
    for parameter in model.parameters():
        parameter.normal_()
model = model.to(torch.bfloat16)
model.save_pretrained(here / "tiny", max_shard_size=500)
values = {name: parameter.double().flatten().tolist() for name, parameter in model.named_parameters()}
(here / "expected.json").write_text(json.dumps(values))

"""Exports a model of Python's transformers for train_exported.cpp (docs/bring-your-model.md).

    python export_transformer.py gpt2.pt2

A small GPT-2 with random weights. GPT2LMHeadModel.from_pretrained("gpt2", use_cache=False) is OpenAI's.
"""
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=97, n_positions=64, n_embd=48, n_layer=2, n_head=4,
                                   bos_token_id=0, eos_token_id=0, use_cache=False))
tokens = torch.zeros(6, 12, dtype=torch.long)

batch = torch.export.Dim("batch", min=1, max=1024)
program = torch.export.export(model.train(), (), {"input_ids": tokens},
                              dynamic_shapes={"input_ids": {0: batch}})
torch.export.save(program, sys.argv[1])

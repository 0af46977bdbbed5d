"""What Python's transformers makes of sentences and of a merged checkpoint:
open_merged.py FOLDER SENTENCES VOCABULARY MAX_LENGTH OUT"""
import sys

import safetensors.torch
from transformers import AutoModelForCausalLM, GPT2Tokenizer

folder, sentences, vocabulary, max_length, out = sys.argv[1:]
tokenizer = GPT2Tokenizer(f"{vocabulary}/encoder.json", f"{vocabulary}/vocab.bpe")
tokenizer.pad_token = tokenizer.eos_token
batch = tokenizer(open(sentences).read().splitlines(), return_tensors="pt", padding=True,
                  truncation=True, max_length=int(max_length))
labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
model = AutoModelForCausalLM.from_pretrained(folder).eval()
loss = model(**batch, labels=labels).loss
safetensors.torch.save_file({"input_ids": batch["input_ids"], "labels": labels,
                             "attention_mask": batch["attention_mask"],
                             "loss": loss.detach().reshape(1)}, out)

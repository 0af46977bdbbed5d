"""What pretrained_test asks Python's transformers for.

make DIR           writes DIR/<family>, tiny random models as save_pretrained leaves them,
                   DIR/<family>-sharded and DIR/<family>-bin, the same in several files and as
                   pytorch_model.bin, DIR/<family>.pt2, the same exported in training, and
                   DIR/<family>.safetensors: inputs, logits, and for decoders what generate says.
open DIR OURS OUT  opens OURS/<family> with from_pretrained, strictly, and writes OUT/<family>.safetensors
                   with the logits of the inputs in DIR/<family>.safetensors. Folders may be several of a
                   family: OURS/<family>@<kind>.
"""
import copy
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

NEW_TOKENS = 7
CAUSAL = "gpt2", "llama", "llama3"


def models():
    """family -> model. Sizes that divide by nothing."""
    small = {"vocab_size": 53, "num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 12,
             "intermediate_size": 22}
    yield "gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=53, n_positions=19, n_embd=12, n_layer=2, n_head=3, bos_token_id=0,
        eos_token_id=0))
    yield "llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **small | {"hidden_size": 24, "num_attention_heads": 6}, num_key_value_heads=2,
        max_position_embeddings=32))
    yield "llama3", transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **small | {"hidden_size": 24, "num_attention_heads": 6}, num_key_value_heads=2, head_dim=8,
        max_position_embeddings=300, rope_parameters={
            "rope_type": "llama3", "rope_theta": 50.0, "factor": 3.5, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 97}))
    yield "bert", transformers.BertForMaskedLM(transformers.BertConfig(
        **small, max_position_embeddings=16))
    for name, inner in ("t5", "relu"), ("t5-gated", "gated-gelu"):
        yield name, transformers.T5ForConditionalGeneration(transformers.T5Config(
            vocab_size=53, d_model=12, d_kv=5, d_ff=22, num_layers=2, num_heads=3,
            relative_attention_num_buckets=8, relative_attention_max_distance=16,
            feed_forward_proj=inner, decoder_start_token_id=0))
    yield "vit", transformers.ViTForImageClassification(transformers.ViTConfig(
        **{key: small[key] for key in small if key != "vocab_size"}, image_size=8, patch_size=4,
        num_labels=7))


def draw(model):
    """Weights large enough that outputs differ from token to token."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0 if parameter.dim() > 1 else 0.5, 0.3)


def inputs(family):
    if family == "vit":
        return {"pixel_values": torch.randn(3, 3, 8, 8)}
    found = {"input_ids": torch.randint(1, 53, (3, 9))}
    if family not in CAUSAL:
        mask = torch.ones(3, 9, dtype=torch.long)
        mask[1, 6:] = 0
        found["attention_mask"] = mask
    if family == "bert":
        found["token_type_ids"] = torch.randint(0, 2, (3, 9))
    if family.startswith("t5"):
        found["decoder_input_ids"] = torch.randint(1, 53, (3, 5))
    return found


def export(model, given, path):
    model = copy.deepcopy(model).train()
    for module in model.modules():
        if getattr(module, "config", None) is not None:
            module.config.use_cache = False
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (), given,
                                  dynamic_shapes={key: {0: batch} for key in given})
    torch.export.save(program, path)


def make(folder):
    torch.manual_seed(0)
    for family, model in models():
        draw(model)
        model.eval()
        if getattr(model, "generation_config", None) is not None:
            model.generation_config.eos_token_id = None
        given = inputs(family)
        with torch.no_grad():
            results = given | {"logits": model(**given).logits}
            if family in CAUSAL or family.startswith("t5"):
                prompt = {key: given[key] for key in given if key != "decoder_input_ids"}
                results["generated"] = model.generate(
                    **prompt, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
        export(model, given, folder / f"{family}.pt2")
        model.save_pretrained(folder / family)
        model.save_pretrained(folder / f"{family}-sharded", max_shard_size="4KB")
        as_bin = folder / f"{family}-bin"
        as_bin.mkdir()
        shutil.copy(folder / family / "config.json", as_bin)
        torch.save(load_file(folder / family / "model.safetensors"), as_bin / "pytorch_model.bin")
        save_file({key: value.contiguous() for key, value in results.items()},
                  folder / f"{family}.safetensors")


def open_ours(folder, ours, out):
    out.mkdir()
    for saved in sorted(ours.iterdir()):
        kind = json.loads((saved / "config.json").read_text())["architectures"][0]
        model, info = getattr(transformers, kind).from_pretrained(saved, output_loading_info=True)
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if info[what]:
                sys.exit(f"{saved.name}: {what}: {info[what]}")
        given = load_file(folder / f"{saved.name.split('@')[0]}.safetensors")
        given.pop("logits")
        given.pop("generated", None)
        with torch.no_grad():
            save_file({"logits": model.eval()(**given).logits.contiguous()},
                      out / f"{saved.name}.safetensors")


if __name__ == "__main__":
    command, *folders = sys.argv[1:]
    {"make": make, "open": open_ours}[command](*map(pathlib.Path, folders))

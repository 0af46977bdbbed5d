"""Writes what exported_transformers_test reads: tiny random models of Python's transformers as
exported programs, and how they train in Python. The files are those of
tests/exported_model_test/export_models.py, whose functions do it.

    python tests/exported_transformers_test/export_transformers.py DIR [family...]

needs PyTorch 2.11 and transformers 5. Everything is computed in double, where transformers does not
ask for float. Sizes divide by nothing.
"""
import copy
import pathlib
import sys

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "exported_model_test"))
from export_models import STEPS, batches_of, cross_entropy, export, train  # noqa: E402

WORDS, ROWS, TIME, SAID = 53, 6, 9, 5


def tokens(g, time):
    return torch.randint(1, WORDS, (ROWS, time), generator=g)


def padded(g, time):
    """A mask that leaves out the ends of some rows."""
    lengths = torch.randint(4, time + 1, (ROWS, 1), generator=g)
    return (torch.arange(time) < lengths).long()


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=WORDS, n_positions=19, n_embd=12, n_layer=2, n_head=3, use_cache=False,
        bos_token_id=0, eos_token_id=0))


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=24, num_attention_heads=6, num_key_value_heads=2,
        intermediate_size=22, num_hidden_layers=2, max_position_embeddings=32, use_cache=False))


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(
        vocab_size=WORDS, hidden_size=12, num_attention_heads=3, intermediate_size=22,
        num_hidden_layers=2, max_position_embeddings=16))


def t5():
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=WORDS, d_model=12, d_kv=5, d_ff=22, num_layers=2, num_heads=3, use_cache=False,
        relative_attention_num_buckets=8, relative_attention_max_distance=16,
        decoder_start_token_id=0))


def mixtral():
    """torch.export takes the experts one way only: all of them as one batched product."""
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        vocab_size=WORDS, hidden_size=24, num_attention_heads=6, num_key_value_heads=2,
        intermediate_size=22, num_hidden_layers=2, max_position_embeddings=32, use_cache=False,
        num_local_experts=4, experts_implementation="batched_mm"))


# What the encoders and GPT-BigCode share; the names of a few sizes differ.
SMALL = dict(vocab_size=WORDS, hidden_size=12, num_attention_heads=3, intermediate_size=22,
             num_hidden_layers=2, max_position_embeddings=16, pad_token_id=0)


def roberta():
    return transformers.RobertaForMaskedLM(transformers.RobertaConfig(**SMALL))


def electra():
    return transformers.ElectraForMaskedLM(transformers.ElectraConfig(**SMALL, embedding_size=12))


def esm():
    return transformers.EsmForMaskedLM(transformers.EsmConfig(
        **SMALL, mask_token_id=WORDS - 1, hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1))


def distilbert():
    return transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(
        vocab_size=WORDS, dim=12, n_heads=3, hidden_dim=22, n_layers=2,
        max_position_embeddings=16))


def gpt_bigcode():
    """All heads share one of keys and values."""
    return transformers.GPTBigCodeForCausalLM(transformers.GPTBigCodeConfig(
        vocab_size=WORDS, n_positions=19, n_embd=12, n_layer=2, n_head=3, use_cache=False,
        bos_token_id=0, eos_token_id=0))


def own_loss(outputs, target):
    return outputs[0]


# family: the model, what forward takes by name at a time `more` than the usual one, and the tokens
# that its outputs have then.
FAMILIES = {
    "gpt2": (gpt2, lambda g, more: {"input_ids": tokens(g, TIME + more)}, TIME),
    "gpt2_labels": (gpt2, lambda g, more: {"input_ids": tokens(g, TIME + more),
                                           "labels": tokens(g, TIME + more)}, TIME),
    "llama": (llama, lambda g, more: {"input_ids": tokens(g, TIME + more),
                                      "attention_mask": padded(g, TIME + more)}, TIME),
    "bert": (bert, lambda g, more: {"input_ids": tokens(g, TIME + more),
                                    "attention_mask": padded(g, TIME + more),
                                    "token_type_ids": tokens(g, TIME + more) % 2}, TIME),
    "t5": (t5, lambda g, more: {"input_ids": tokens(g, TIME + more),
                                "attention_mask": padded(g, TIME + more),
                                "decoder_input_ids": tokens(g, SAID + more)}, SAID),
    "mixtral": (mixtral, lambda g, more: {"input_ids": tokens(g, TIME + more)}, TIME),
}


def masked_tokens(g, more):
    return {"input_ids": tokens(g, TIME + more), "attention_mask": padded(g, TIME + more)}


# Of these only how they train with dropout is written: a mask of truth values meets it there.
WITH_DROPOUT = {family.__name__: (family, masked_tokens, TIME)
                for family in (roberta, electra, esm, distilbert, gpt_bigcode)}


def write(family, folder):
    make, draw, time = (FAMILIES | WITH_DROPOUT)[family]
    torch.manual_seed(3)
    model = make().train()
    equal = batches_of(lambda g: (draw(g, 0), tokens(g, time)))
    generator = torch.Generator().manual_seed(7)
    longer = [(draw(generator, more), tokens(generator, time + more)) for more in range(STEPS)]
    example = equal[0][0]
    loss = own_loss if "labels" in example else cross_entropy
    batch = torch.export.Dim("batch", min=1, max=64)
    if family in WITH_DROPOUT:
        export(model, example, {key: {0: batch} for key in example}, folder / f"{family}.pt2")
        train(model, equal, loss, folder / f"{family}_dropout.bin")
        return
    for name, dims in ("", {0: batch}), ("_length", {0: batch, 1: torch.export.Dim.DYNAMIC}):
        export(model, example, {key: dims for key in example}, folder / f"{family}{name}.pt2")
    train(copy.deepcopy(model), equal, loss, folder / f"{family}_dropout.bin")
    model.eval()
    train(copy.deepcopy(model), longer, loss, folder / f"{family}_length.bin")
    train(model, equal, loss, folder / f"{family}.bin")


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    for family in sys.argv[2:] or FAMILIES | WITH_DROPOUT:
        write(family, folder)


if __name__ == "__main__":
    main()

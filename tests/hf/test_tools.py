"""Tools that train models of transformers take ours: Trainer, accelerate, TRL, peft, torch.compile."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from resolvent.hf import ResolventForCausalLM, replace_attention
from tests.hf.models import VOCABULARY, prompts, tiny
from tests.hf.test_replace import llama

LENGTH = 24


class Sequences(Dataset):
    """Sequences of tokens that count up, from a random start: quickly learned."""

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (torch.arange(LENGTH) + 7 * index) % (VOCABULARY - 1) + 1
        return {"input_ids": tokens, "labels": tokens}


def trainer(model: torch.nn.Module, folder: Path, **settings: object) -> object:
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(str(folder), max_steps=20, per_device_train_batch_size=4, learning_rate=3e-3,
                                  logging_steps=5, report_to=[], use_cpu=True, disable_tqdm=True, seed=3,
                                  **settings)  # fmt: skip
    return Trainer(model, arguments, train_dataset=Sequences(), eval_dataset=Sequences())


@pytest.fixture
def their_warnings() -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tools about themselves
        yield


@pytest.mark.usefixtures("their_warnings")
def test_a_trainer_that_resumes_equals_one_that_does_not(tmp_path: Path) -> None:
    through = trainer(tiny(dropout=0.1).train(), tmp_path / "through", save_strategy="no")
    through.train()
    trainer(tiny(dropout=0.1).train(), tmp_path / "resumed", save_steps=10).train()
    resumed = trainer(tiny(dropout=0.1).train(), tmp_path / "resumed", save_strategy="no")
    resumed.train(resume_from_checkpoint=str(tmp_path / "resumed" / "checkpoint-10"))
    for (name, expected), actual in zip(
        through.model.state_dict().items(), resumed.model.state_dict().values(), strict=True
    ):
        assert torch.equal(expected, actual), name
    losses = [entry["loss"] for entry in through.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert through.evaluate()["eval_loss"] < losses[0]


@pytest.mark.usefixtures("their_warnings")
def test_a_trainer_takes_padded_batches_and_checkpoints_gradients(tmp_path: Path) -> None:
    """Right padding, as collators make it, in training and in evaluation, where a cache would be made."""
    from transformers import DataCollatorForSeq2Seq

    from resolvent.hf.tokenizer import fast_tokenizer

    model = tiny(vocab_size=257).train()
    training = trainer(model, tmp_path, save_strategy="no", gradient_checkpointing=True)
    tokenizer = fast_tokenizer("bytes")
    tokenizer.padding_side = "right"
    training.data_collator = DataCollatorForSeq2Seq(tokenizer)
    training.train_dataset = training.eval_dataset = [
        {"input_ids": list(range(60 + i, 70 + 3 * i)), "labels": list(range(60 + i, 70 + 3 * i))} for i in range(8)
    ]
    before = training.evaluate()["eval_loss"]
    training.train()
    assert training.evaluate()["eval_loss"] < before


@pytest.mark.usefixtures("their_warnings")
@pytest.mark.parametrize(("make", "targets"), [
    (tiny, ["values", "scores", "output"]),
    (lambda: replace_attention(llama(), "exponential+cache"), ["q_proj", "v_proj", "feedback.queries"]),
], ids=["ours", "Llama with mixers"])  # fmt: skip
def test_lora_trains_only_what_it_should(
    make: Callable[[], PreTrainedModel], targets: list[str], tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    original, ids = make(), prompts()["input_ids"]
    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=targets)
    model = peft.get_peft_model(make(), lora)
    torch.testing.assert_close(model(input_ids=ids).logits, original(ids).logits)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * len(targets) * model.config.num_hidden_layers
    assert all(".lora_" in name for name in trained)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.03)
    losses = []
    for _ in range(10):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert all(torch.equal(p, original.state_dict()[name.replace(".base_layer", "").removeprefix("base_model.model.")])
               for name, p in model.named_parameters() if name not in trained)  # fmt: skip
    model.eval()
    cached, uncached = (model.generate(input_ids=ids, max_new_tokens=8, use_cache=use) for use in (True, False))
    assert torch.equal(cached, uncached)
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(make(), tmp_path)
    torch.testing.assert_close(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    torch.testing.assert_close(model.merge_and_unload()(ids).logits, loaded(input_ids=ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("their_warnings")
def test_trl_fine_tunes(tmp_path: Path) -> None:
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    from resolvent.hf.tokenizer import fast_tokenizer

    rows = datasets.Dataset.from_dict({"text": ["one two three four", "to be or not to be", "a b c"] * 4})
    for packing in (False, True):
        model = tiny(vocab_size=257, eos_token_id=256).train()
        settings = trl.SFTConfig(str(tmp_path / str(packing)), max_steps=6, per_device_train_batch_size=2, report_to=[],
                                 use_cpu=True, bf16=False, disable_tqdm=True, learning_rate=1e-2, logging_steps=1,
                                 save_strategy="no", packing=packing, max_length=32)  # fmt: skip
        training = trl.SFTTrainer(model, settings, train_dataset=rows, processing_class=fast_tokenizer("bytes"))
        training.train()
        losses = [entry["loss"] for entry in training.state.log_history if "loss" in entry]
        assert losses[-1] < losses[0]


@pytest.mark.usefixtures("their_warnings")
def test_accelerate_prepares_and_places(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    model, ids = tiny(), prompts()["input_ids"]
    expected = model(ids).logits
    model.save_pretrained(tmp_path)
    placed = ResolventForCausalLM.from_pretrained(tmp_path, device_map="auto")
    assert torch.equal(placed(ids).logits, expected)
    assert torch.equal(placed.generate(ids, max_new_tokens=8), model.generate(ids, max_new_tokens=8, use_cache=False))
    accelerator = accelerate.Accelerator(cpu=True)
    prepared, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    accelerator.backward(prepared(ids, labels=ids).loss)
    optimizer.step()
    assert not torch.equal(model(ids).logits, expected)


def test_a_compiled_model_computes_the_same() -> None:
    model, ids = tiny(), prompts()["input_ids"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler about itself
        compiled = torch.compile(model, backend="aot_eager")
        output = compiled(input_ids=ids, labels=ids)
    torch.testing.assert_close(output.logits, model(ids).logits, rtol=1e-4, atol=1e-4)
    output.loss.backward()
    assert model.lm_head.weight.grad is not None

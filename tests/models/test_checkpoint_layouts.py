"""Every head, spelling, dtype and way of sharing that a DeepSpec checkpoint may have is served as it says."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_support import COPIES, content, write, write_pair
from dsparkd.models.checkpoint import load_drafter, load_pair, load_target, read_drafter, read_target
from dsparkd.models.config import load_drafter_config, load_target_config
from dsparkd.models.survey import survey_drafter
from dsparkd.statemachine.errors import Refused
from model_support import CPU, TinyCache, assert_twins_agree
from model_support import load_pair as load_both_twins

PROMPT = [5, 40, 41, 3, 20, 17, 63, 63, 2, 31, 0, 7, 33]
MARKOV: dict[str, dict[str, Any]] = {
    "none": {"markov_rank": 0, "markov_head_type": None},
    **{kind: {"markov_rank": 6, "markov_head_type": kind} for kind in ("vanilla", "gated", "rnn")},
}
CONFIDENCE: dict[str, dict[str, Any]] = {
    "no confidence": {"enable_confidence_head": False, "confidence_head_with_markov": None},
    "plain": {"enable_confidence_head": True, "confidence_head_with_markov": False},
    "with Markov": {"enable_confidence_head": True, "confidence_head_with_markov": True},
}
HEADS = [pair for pair in itertools.product(MARKOV, CONFIDENCE) if pair != ("none", "with Markov")]
PRESENT = list(itertools.product(("equal", "absent", "different"), repeat=2))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize(("markov", "confidence"), HEADS, ids=map(" and ".join, HEADS))
def test_every_combination_of_heads_drafts_as_the_reference_does(tmp_path: Path, markov: str, confidence: str) -> None:
    shared = {"attention_bias": markov == "gated", "tie_word_embeddings": None}
    target, drafter = write_pair(
        tmp_path,
        target={**shared, "tie_word_embeddings": confidence == "plain"},
        drafter={**shared, **MARKOV[markov], **CONFIDENCE[confidence]},
    )
    pair = load_both_twins(target, drafter)
    assert (pair.drafter.confidence is None) == (confidence == "no confidence")
    for anchor in (9, 63):
        assert_twins_agree(pair, PROMPT, anchor=anchor)


@pytest.mark.parametrize(("markov", "confidence"), HEADS, ids=map(" and ".join, HEADS))
def test_the_tensors_of_every_head_are_all_needed_and_all_known(tmp_path: Path, markov: str, confidence: str) -> None:
    made = content(tmp_path, drafter={**MARKOV[markov], **CONFIDENCE[confidence]})
    target, drafter = write(made, tmp_path)
    config = load_target_config(target)
    heads = [name for name in made.drafter_tensors if "_head" in name and name != "lm_head.weight"]
    counts = {"none": 0, "vanilla": 2, "gated": 4, "rnn": 4}
    assert len(heads) == counts[markov] + (0 if confidence == "no confidence" else 2)
    for name in heads:
        kept = {key: value for key, value in made.drafter_tensors.items() if key != name}
        write(type(made)(made.target, made.drafter, made.target_tensors, kept), tmp_path)
        (problem,) = survey_drafter(drafter, config).problems
        assert problem.startswith(f"{name}: expected [")


def test_old_and_new_spellings_of_a_drafter_mean_the_same(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path)
    new = load_drafter_config(drafter, load_target_config(target))
    older = {"rope_parameters": None, "dtype": None, "rope_theta": 10000.0, "torch_dtype": "float32"}
    target, drafter = write_pair(tmp_path / "old", drafter=older)
    assert load_drafter_config(drafter, load_target_config(target)) == new


@pytest.mark.parametrize("stored", DTYPES, ids=str)
@pytest.mark.parametrize("served", DTYPES, ids=str)
def test_files_of_every_dtype_load_into_every_serving_dtype(
    tmp_path: Path, stored: torch.dtype, served: torch.dtype
) -> None:
    made = content(tmp_path, drafter={"markov_head_type": "rnn"})
    for tensors in (made.target_tensors, made.drafter_tensors):
        tensors.update({name: value.to(stored) for name, value in tensors.items()})
    paths = write(made, tmp_path)
    pair = load_pair(*paths, dtype=served, device=CPU)
    assert pair.drafter is not None
    assert pair.warnings == []
    assert pair.target.embed_tokens.equal(made.target_tensors["model.embed_tokens.weight"].to(served))
    assert pair.drafter.lm_head.data_ptr() == pair.target.lm_head.data_ptr()
    for model in (pair.target, pair.drafter):
        assert {layer.qkv.dtype for layer in model.layers} == {model.norm.weight.dtype} == {served}
    pair.target.set_taps(pair.drafter.config.target_layer_ids)
    pair.target.prepare(32)
    hidden, features = pair.target.forward(
        torch.tensor(PROMPT), torch.arange(len(PROMPT)), lambda _, q, k, v: q.flatten(1)
    )
    assert (hidden.dtype, features.dtype) == (served, served)
    assert pair.target.logits(hidden).isfinite().all()


def test_a_weight_that_the_serving_dtype_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    made = content(tmp_path)
    made.target_tensors["model.layers.1.mlp.down_proj.weight"][3, 4] = -70000.0
    target, drafter = write(made, tmp_path)
    with pytest.raises(
        Refused, match=r"layers.1.mlp.down_proj.weight: expected values up to 65504 for float16, found 70000"
    ):
        load_pair(target, drafter, dtype=torch.float16, device=CPU)
    load_pair(target, drafter, dtype=torch.bfloat16, device=CPU)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("present", PRESENT, ids=map(" and ".join, PRESENT))
def test_a_matrix_equal_or_absent_is_the_targets_memory_and_another_is_kept_and_told(
    tmp_path: Path, tied: bool, present: tuple[str, str]
) -> None:
    made = content(tmp_path, target={"tie_word_embeddings": tied})
    kinds = dict(zip(COPIES, present, strict=True))
    for name, kind in kinds.items():
        if kind == "absent":
            del made.drafter_tensors[name]
        elif kind == "different":
            made.drafter_tensors[name][0, 0] += 1
    pair = load_pair(*write(made, tmp_path), dtype=torch.float32, device=CPU)
    drafter, target = pair.drafter, pair.target
    assert drafter is not None
    for name, own, its in (
        ("embed_tokens.weight", drafter.embed_tokens, target.embed_tokens),
        ("lm_head.weight", drafter.lm_head, target.lm_head),
    ):
        different = kinds[name] == "different"
        assert (own.data_ptr() == its.data_ptr()) != different
        assert not different or own.equal(made.drafter_tensors[name])
        told = [
            warning for warning in pair.warnings if warning.startswith(f"{name} of the drafter is not its target's")
        ]
        assert len(told) == different
        assert not told or "8192 bytes more" in told[0]
    assert drafter.shares_target_embeddings == ("different" not in present)
    assert (target.lm_head.data_ptr() == target.embed_tokens.data_ptr()) == tied


def test_l096_a_block_owes_nothing_to_the_number_of_layers(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path, drafter={"num_hidden_layers": 3, "block_size": 5})
    pair = load_both_twins(target, drafter)
    cache = TinyCache(pair)
    _, (features,) = cache.run([PROMPT], [0])
    cache.write_context(0, features, 0)
    assert cache.propose([9], [len(PROMPT)])[1].token_ids.shape == (1, 5)
    assert_twins_agree(pair, PROMPT)


def test_l098_a_name_that_families_share_is_refused_and_nothing_is_inherited(tmp_path: Path) -> None:
    quantised = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    made = content(tmp_path)
    target, drafter = write(made, tmp_path)
    made.target.update(quantised)
    made.drafter["architectures"] = ["DSparkDraftModel"]
    write(made, tmp_path)
    with pytest.raises(Refused) as caught:
        load_pair(target, drafter, dtype=torch.bfloat16, device=CPU)
    assert "2 problem(s)" in str(caught.value)
    assert "target: quantization_config" in str(caught.value)
    assert "drafter: architectures = ['DSparkDraftModel']: expected ['Qwen3DSparkModel']" in str(caught.value)
    # A drafter in bf16 beside a target in f32 is read as what it is.
    made = content(tmp_path)
    made.drafter_tensors.update({name: value.bfloat16() for name, value in made.drafter_tensors.items()})
    target, drafter = write(made, tmp_path)
    config, _ = read_target(target)
    assert {value.dtype for value in read_drafter(drafter, config)[1].values()} == {torch.bfloat16}
    loaded = load_drafter(
        drafter, load_target(target, dtype=torch.float32, device=CPU), dtype=torch.float32, device=CPU
    )
    assert loaded.layers[0].qkv.dtype == torch.float32

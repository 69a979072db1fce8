from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from gradleak.core import Batch, Objective, Update, UpdateKind
from gradleak.core.tensor_names import bare_name, base_name, strip_prefix
from gradleak.results import InconsistentUpdateError, UnsupportedError


@pytest.mark.parametrize(
    ("name", "stripped", "bare"),
    [
        ("0.weight", "0.weight", "0.weight"),
        ("module.0.weight", "0.weight", "0.weight"),
        ("_module.0.weight", "0.weight", "0.weight"),
        ("_orig_mod.0.weight", "0.weight", "0.weight"),
        ("module._orig_mod._module.0.weight", "0.weight", "0.weight"),
        ("0._orig_mod.weight", "0.weight", "0.weight"),
        ("_fsdp_wrapped_module.0._fsdp_wrapped_module.weight", "0.weight", "0.weight"),
        ("0._checkpoint_wrapped_module.weight", "0.weight", "0.weight"),
        ("body.module.0.weight", "body.module.0.weight", "body.0.weight"),
        ("module", "module", "module"),
        ("my_module.weight", "my_module.weight", "my_module.weight"),
        ("a._module", "a._module", "a._module"),
    ],
)
def test_prefixes(name: str, stripped: str, bare: str) -> None:
    assert strip_prefix(name) == stripped
    assert bare_name(name) == bare


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("base_model.model.q.lora_A.default.weight", "q.lora_A.weight"),
        ("base_model.model.q.lora_A.weight", "q.lora_A.weight"),
        ("module.base_model.model.q.lora_A.client7.weight", "q.lora_A.weight"),
        ("base_model.model.e.lora_embedding_A.default", "e.lora_embedding_A"),
        ("base_model.model.q.lora_magnitude_vector.default.weight", "q.lora_magnitude_vector.weight"),
        ("base_model.model.q.base_layer.bias", "q.bias"),
        ("base_model.model.head.modules_to_save.default.weight", "head.weight"),
        ("base_model.model.head.original_module.weight", "head.original_module.weight"),
        ("base_model.model.f.ia3_l.default", "f.ia3_l"),
        ("q.weight", "q.weight"),
        ("base_model.model", "base_model.model"),
    ],
)
def test_what_peft_adds(name: str, base: str) -> None:
    assert base_name(name) == base


def objective() -> Objective:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].bias.requires_grad_(False)
    return Objective.from_module(model)


def tensors_for(known: Objective) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(tensor.shape, generator=generator) for name, tensor in known.params.items()}


def same(left: Any, right: Any) -> bool:
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(
    "prefix",
    [
        "module.",
        "_module.",
        "_orig_mod.",
        "module._orig_mod.",
        "_orig_mod._module.module.",
        "_fsdp_wrapped_module.",
        "module._checkpoint_wrapped_module.",
    ],
)
def test_wrapper_prefixes_are_dropped_and_listed(prefix: str) -> None:
    known = objective()
    tensors = tensors_for(known)
    shuffled = {prefix + name: tensors[name] for name in reversed(list(tensors))}
    aligned = Update(tensors=shuffled, kind=UpdateKind.DELTA, provenance={"a": 1}).align(known)
    assert same(aligned.tensors, tensors)
    assert aligned.kind is UpdateKind.DELTA
    assert aligned.provenance["a"] == 1
    assert f"{prefix}0.weight read as 0.weight" in aligned.alignment
    plain = Update(tensors=tensors, provenance={"a": 1}).align(known)
    assert plain.provenance == {"a": 1}


class Holder(nn.Module):
    """A model whose own parts bear the names of wrappers."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            setattr(self, name, nn.Linear(2, 1, bias=False))


def test_prefixes_inside_a_name_and_prefixes_of_the_model_itself() -> None:
    known = Objective.from_module(nn.Sequential(nn.Sequential(nn.Linear(2, 1, bias=False))))
    (tensor,) = known.params.values()
    for name in ("0.0.weight", "0.module.0.weight", "0._orig_mod.0._module.weight", "module.0.0._orig_mod.weight"):
        assert list(Update(tensors={name: tensor}).align(known).tensors) == ["0.0.weight"]
    held = Objective.from_module(Holder("module"))
    for name in ("module.weight", "weight", "_orig_mod.module.weight"):
        assert list(Update(tensors={name: tensor}).align(held).tensors) == ["module.weight"]


def test_an_ambiguous_prefix_is_refused() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = Holder("module", "_module")

    known = Objective.from_module(Two())
    with pytest.raises(InconsistentUpdateError, match=r"a.weight can be a._module.weight or a.module.weight"):
        Update(tensors={"a.weight": torch.ones(1, 2)}).align(known)
    known = objective()
    tensors = tensors_for(known)
    doubled = tensors | {"module.0.weight": tensors["0.weight"] + 1}
    with pytest.raises(InconsistentUpdateError, match=r"0.weight and module.0.weight are both 0.weight, but .* differ"):
        Update(tensors=doubled).align(known)


class Adapted(nn.Module):
    """A layer as peft leaves it: the frozen layer inside, two factors of each adapter beside it."""

    def __init__(self, *adapters: str) -> None:
        super().__init__()
        self.base_layer = nn.Linear(3, 2).requires_grad_(False)
        self.lora_A = nn.ModuleDict({name: nn.Linear(3, 1, bias=False) for name in adapters})
        self.lora_B = nn.ModuleDict({name: nn.Linear(1, 2, bias=False) for name in adapters})


def adapted(*adapters: str) -> Objective:
    """The model inside a `PeftModel`: its names begin with base_model.model."""
    model, base = nn.Module(), nn.Module()
    base.add_module("model", nn.ModuleDict({"q": Adapted(*adapters)}))
    model.add_module("base_model", base)
    return Objective.from_module(model)


def test_adapters_come_under_the_names_of_peft_files_and_of_the_base_model() -> None:
    known = adapted("default")
    assert list(known.params) == [f"base_model.model.q.lora_{one}.default.weight" for one in "AB"]
    tensors = tensors_for(known)
    values = list(tensors.values())
    for start in ("base_model.model.q.", "module.base_model.model.q.", "q."):
        for adapter in ("", ".default"):
            sent = {f"{start}lora_{one}{adapter}.weight": value for one, value in zip("AB", values, strict=True)}
            assert same(Update(tensors=sent).align(known).tensors, tensors)
    # The whole layer, as the base model names it: its frozen weight is no part of the update.
    sent |= {"q.weight": torch.zeros(2, 3), "q.bias": torch.zeros(2)}
    assert same(Update(tensors=sent).align(known).tensors, tensors)


def test_two_adapters_leave_no_reading_of_a_name_without_one() -> None:
    known = adapted("default", "other")
    with pytest.raises(InconsistentUpdateError, match=r"lora_A.weight can be .*default.weight or .*other.weight"):
        Update(tensors={"base_model.model.q.lora_A.weight": torch.zeros(1, 3)}).align(known)
    assert same(Update(tensors=tensors_for(known)).align(known).tensors, tensors_for(known))


def test_a_front_that_all_names_share_is_dropped_or_added() -> None:
    plain = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    holder = nn.Module()
    holder.add_module("net", plain)
    inner, outer = Objective.from_module(plain), Objective.from_module(holder)
    tensors = tensors_for(inner)
    longer = {f"net.{name}": tensor for name, tensor in tensors.items()}
    assert same(Update(tensors=longer).align(inner).tensors, tensors)
    assert same(Update(tensors=tensors).align(outer).tensors, longer)
    assert "net.0.bias read as 0.bias" in Update(tensors=longer).align(inner).alignment
    del longer["net.0.bias"]
    with pytest.raises(InconsistentUpdateError, match=r"0.bias: expected \(3,\), got nothing"):
        Update(tensors=longer).align(inner)
    with pytest.raises(InconsistentUpdateError, match="4 missing, 0 of another shape, 5 unknown"):
        Update(tensors={f"net.{name}": tensor for name, tensor in tensors.items()} | {"other": torch.zeros(1)}).align(
            inner
        )


# ------------------------------------------------------------------------------------------------------ lists


def listed(tensors: Any) -> Update:
    return Update(tensors={str(place): tensor.detach() for place, tensor in enumerate(tensors)})


def test_a_positional_list_is_taken_by_number_not_by_name_order() -> None:
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(6)])
    known = Objective.from_module(model)
    tensors = tensors_for(known)
    by_name = dict(sorted((str(place), tensor) for place, tensor in enumerate(tensors.values())))
    assert list(by_name)[:4] == ["0", "1", "10", "11"]
    aligned = Update(tensors=by_name).align(known)
    assert same(aligned.tensors, tensors)
    assert aligned.alignment == ("a list without names was taken in the order of the model's parameters",)


def test_a_list_in_the_order_of_the_state_carries_buffers_and_tied_weights() -> None:
    """What `[value for _, value in model.state_dict().items()]` sends, as the tutorials of Flower do."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3, bias=False))
    model[4].weight = model[2].weight
    model[0].bias.requires_grad_(False)
    known = Objective.from_module(model)
    assert list(known.state_names) == list(model.state_dict())
    aligned = listed(model.state_dict().values()).align(known)
    assert same(aligned.tensors, known.params)
    assert aligned.alignment[0] == "a list without names was taken in the order of state_dict(), buffers among them"
    assert "1.num_batches_tracked left out: it is not a trainable parameter" in aligned.alignment
    whole = listed(model.parameters()).align(known)
    assert same(whole.tensors, known.params)
    assert whole.alignment[0].endswith("all parameters, frozen ones among them")
    assert same(listed(p for p in model.parameters() if p.requires_grad).align(known).tensors, known.params)
    behind = listed([*model.parameters(), *model.buffers()]).align(known)
    assert behind.alignment[0].endswith("the parameters, and then the buffers")
    assert same(behind.tensors, known.params)


def test_a_list_that_fits_no_order_is_refused_with_what_was_expected() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    known = Objective.from_module(model)
    state = list(model.state_dict().values())
    for wrong in (state[:5], list(reversed(list(known.params.values()))), state[:-1]):
        with pytest.raises(InconsistentUpdateError) as caught:
            listed(wrong).align(known)
        message = str(caught.value)
        assert f"a list of {len(wrong)} tensors without names does not fit the model's 6 parameters" in message
        assert "expected 0.weight (3, 4)" in message
        assert (
            "or the 9 of state_dict(): 0.weight (3, 4), 0.bias (3,), 1.weight (3,), 1.bias (3,), 1.running_mean"
            in message
        )
    assert "got (3, 4), (3,), (3,), (3,), (3,), (3,), (), (2, 3). Save" in message


def test_a_list_that_fits_in_two_orders_is_refused() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.register_buffer("scale", torch.ones(2))

    known = Objective.from_module(nn.Sequential(Scaled(), Scaled()))
    with pytest.raises(
        InconsistentUpdateError, match=r"fits the model in several orders: .*state_dict.*then the buffers"
    ):
        listed([torch.ones(2)] * 4).align(known)


# --------------------------------------------------------------------------------------------------- wrappers


def test_a_model_of_checkpointed_parts_has_the_names_and_gradients_of_the_plain_one() -> None:
    generator = torch.Generator().manual_seed(1)
    plain = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    wrapped = nn.Sequential(checkpoint_wrapper(plain[0]), plain[1], plain[2])
    batch = Batch(torch.rand(2, 4, generator=generator), torch.tensor([0, 1]))
    known, expected = Objective.from_module(wrapped), Objective.from_module(plain)
    assert known.renamed["0.weight"] == "0._checkpoint_wrapped_module.weight"
    assert "CheckpointWrapper is taken off 0" in known.notes
    assert same(known.gradient(known.params, batch), expected.gradient(expected.params, batch))
    sent = {name: torch.ones_like(p) for name, p in wrapped.named_parameters()}
    assert list(Update(tensors=sent).align(expected).tensors) == list(expected.params)


def test_a_sharded_model_is_refused_with_what_to_load() -> None:
    class FSDPModule(nn.Linear):
        """Stands in for what `fully_shard` makes, which needs a process group."""

    with pytest.raises(UnsupportedError, match=r"sharded over processes .*full_state_dict=True"):
        Objective.from_module(nn.Sequential(FSDPModule(2, 1)))

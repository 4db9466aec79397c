"""Weights under two names: rules that say which of their tensors make up one of ours, and how.

One list of rules serves both ways, for every transform has an inverse. What is expected of a checkpoint, names and
shapes, is what the rules would write for our own model: a tensor that is missing, unknown or of another shape
is named, and nothing is left at random.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from regard.config import InputError, ModelConfig, Stack, Tower
from regard.nn import skeleton


class Rule(NamedTuple):
    """One of our tensors, and the one or several of theirs that it is made of.

    ``split`` is how many rows each of theirs has in ours; ``shape`` is their shape where ours is another view of the
    same numbers; ``transpose`` is for GPT-2, whose matrices are (in, out); ``also`` names copies of the same
    tensor that a checkpoint may hold beside it, because the two are tied; ``skip`` is how many rows theirs begins with
    that no input ever reads: they are left out, and come back as zeros.

    >>> rule = Rule("qkv.weight", ("q.weight", "k.weight"), split=(2, 1))
    >>> q, k = rule.write(torch.tensor([[1.0], [2.0], [3.0]]))
    >>> rule.read([q, k], (3, 1)).flatten()
    tensor([1., 2., 3.])
    """

    ours: str
    theirs: tuple[str, ...]
    split: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    transpose: bool = False
    also: tuple[str, ...] = ()
    skip: int = 0

    def read(self, theirs: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        """Theirs to ours, which has this shape."""
        whole = torch.cat(list(theirs)) if len(theirs) > 1 else theirs[0]
        whole = whole.transpose(0, -1) if self.transpose else whole
        whole = whole[self.skip :] if self.skip else whole
        return whole.reshape(tuple(shape)).contiguous()

    def write(self, ours: Tensor) -> list[Tensor]:
        """Ours to theirs, in the order of their names."""
        whole = ours.transpose(0, -1).contiguous() if self.transpose else ours
        whole = whole.reshape(self.shape) if self.shape else whole
        whole = torch.cat([whole.new_zeros(self.skip, *whole.shape[1:]), whole]) if self.skip else whole
        return list(whole.split(self.split)) if self.split else [whole]


class Family(Protocol):
    """What a family's module offers. ``spellings`` rewrites other names of their tensors, older or newer, to those
    of a saved checkpoint; ``ignored`` matches what a checkpoint may hold and we have no use for."""

    @property
    def model_types(self) -> tuple[str, ...]: ...
    @property
    def spellings(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def ignored(self) -> tuple[str, ...]: ...
    def fits(self, config: ModelConfig) -> bool: ...
    def to_config(self, hf: Mapping[str, Any]) -> ModelConfig: ...
    def from_config(self, config: ModelConfig) -> dict[str, Any]: ...
    def rules(self, config: ModelConfig) -> list[Rule]: ...


# ---------------------------------------------------------------------------------------
# Writing rules


def as_stack(tower: Tower | None) -> Stack:
    """The tower that a family's models have."""
    assert isinstance(tower, Stack), "fits() has seen to it"
    return tower


def module(ours: str, *theirs: str, bias: bool = True, **how: Any) -> Iterator[Rule]:
    """The weight, and the bias if there is one, of a linear layer or a norm."""
    for part in ("weight", "bias") if bias else ("weight",):
        yield Rule(f"{ours}.{part}", tuple(f"{name}.{part}" for name in theirs), **how)


def blocks(
    stack: Stack, ours: str, theirs: str, names: Mapping[str, str | tuple[str, ...]], transpose: bool = False
) -> Iterator[Rule]:
    """Every layer of a tower. ``names`` gives each module of our block theirs, several where ours is fused."""
    d_head, d_value = stack.head_widths
    n_kv_heads = stack.n_kv_heads or stack.n_heads
    widths = stack.n_heads * d_head, n_kv_heads * d_head, n_kv_heads * d_value
    splits = {"self_attn.qkv": widths, "cross_attn.kv": widths[1:], "mlp.up": (stack.d_ff, stack.d_ff)}
    for i in range(stack.n_layers):
        for mine, given in names.items():
            parts = (given,) if isinstance(given, str) else given
            is_norm = mine.endswith("norm")
            yield from module(
                f"{ours}.stack.blocks.{i}.{mine}",
                *(f"{theirs}.{i}.{name}" for name in parts),
                bias=stack.norm == "layer" if is_norm else stack.bias,
                split=splits[mine] if len(parts) > 1 else (),
                transpose=transpose and not is_norm,
            )


def vocabulary(ours: str, theirs: str, tied: bool, head: str = "lm_head.weight") -> Iterator[Rule]:
    """The token table, and the head's matrix: the same, or one of its own."""
    yield Rule(ours, (theirs,), also=(head,) if tied else ())
    if not tied:
        yield Rule("head.weight", (head,))


# ---------------------------------------------------------------------------------------
# Applying them


def read_weights(family: Family, config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors as ours, all of them or an error that names what is wrong."""
    ours, rules = skeleton(config).state_dict(), family.rules(config)
    state = _as_saved(state, rules, family)
    _compare(state, _theirs(rules, ours), f"this {family.model_types[0]} checkpoint does not fit its configuration")
    return {rule.ours: rule.read([state[name] for name in rule.theirs], ours[rule.ours].shape) for rule in rules}


def write_weights(family: Family, config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors as theirs, likewise."""
    _compare(state, skeleton(config).state_dict(), "these weights do not fit the configuration")
    return _theirs(family.rules(config), state)


def _theirs(rules: Sequence[Rule], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    assert {rule.ours for rule in rules} == set(ours), "the rules name every tensor of ours, and no other"
    parts = ((rule.theirs, rule.write(ours[rule.ours])) for rule in rules)
    return {name: part for names, tensors in parts for name, part in zip(names, tensors, strict=True)}


def _as_saved(state: Mapping[str, Tensor], rules: Sequence[Rule], family: Family) -> dict[str, Tensor]:
    """The state under the names of a saved checkpoint, without what is ignored and without tied copies."""
    kept: dict[str, Tensor] = {}
    for name, tensor in state.items():
        for old, new in family.spellings:
            name = re.sub(old, new, name)
        kept[name] = tensor
    # What the rules name is never ignored: the pooler is BERT's own or nobody's, as the head says.
    named = {name for rule in rules for name in (*rule.theirs, *rule.also)}
    kept = {n: t for n, t in kept.items() if n in named or not any(re.search(p, n) for p in family.ignored)}
    for rule in rules:
        for copy in rule.also:
            if copy in kept:
                tensor = kept.pop(copy)
                # Some checkpoints hold only the copy.
                if not torch.equal(tensor, kept.setdefault(rule.theirs[0], tensor)):
                    raise InputError(
                        f"{copy} and {rule.theirs[0]} differ, but the configuration ties them;"
                        " set tie_word_embeddings to false"
                    )
    return kept


def _compare(given: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str) -> None:
    missing = [name for name in expected if name not in given]
    extra = [name for name in given if name not in expected]
    wrong = [
        f"{name} {list(given[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in given and given[name].shape != tensor.shape
    ]
    found = {"missing": missing, "unexpected": extra, "of the wrong shape": wrong}
    if any(found.values()):
        raise InputError(f"{what}: " + "; ".join(f"{k}: {_listed(names)}" for k, names in found.items() if names))


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

"""The training loss as a pure function of parameters, buffers and data."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.core.batch import Batch
from gradleak.core.broadcast import check_paired, may_broadcast
from gradleak.core.domain import Domain
from gradleak.core.evaluation import ALWAYS, Classifier, LinearCalls, in_float64, without_checkpointing
from gradleak.core.losses import LOSSES, Loss, check_classes, evaluated, form_of, ignored_index, named_loss
from gradleak.core.module_copy import (
    Attributes,
    Origins,
    batch_normalizers,
    cast_constants,
    failing_part,
    first_line,
    further_names,
    ignore_running_statistics,
    private_copy,
    random_layers,
    renamed,
    state_names,
)
from gradleak.core.process import ONE_CALL
from gradleak.core.randomness import derive_seed, masks_of, watch_draws
from gradleak.core.token_tables import AtEmbeddings, TokenTables, arguments, check_vocabulary, find_tables, logits_of
from gradleak.core.trainable import (
    check_trainable,
    gradient_by_autograd,
    gradient_through_stops,
    non_finite,
    refuse_inference_mode,
    stops_gradients,
)
from gradleak.results import InputError, UnsupportedError
from gradleak.results.errors import kind_of

Tensors = dict[str, Tensor]

# What a forward pass or a loss raises on data that it cannot take.
_REFUSALS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError)


class Mode(StrEnum):
    """Mode in which the client ran its model when it computed the update."""

    EVAL = "eval"
    TRAIN = "train"


@dataclass(frozen=True, kw_only=True, eq=False)
class Objective:
    """The loss of a model as a pure function of (params, batch).

    Built once from a module, of which it keeps a private copy: the module that was passed stays exactly as it is
    (parameters, buffers, gradients, mode, hooks), and later changes to it do not reach the objective. The copy keeps
    nothing of an evaluation: buffers, plain attributes and the global generators are as before afterwards.

    In train mode BatchNorm normalizes by the batch and its running statistics stay as they are; dropout uses the masks
    of `mask_seed` at every call. Under `torch.func.vmap` random layers need `randomness="same"`.

    Attributes:
        params: trainable parameters by name, detached, in `named_parameters` order; a tied weight appears once.
        frozen: parameters with `requires_grad=False`; they are used but not shared.
        buffers: buffers by name, for instance BatchNorm statistics.
        tied: for every further name of a tied weight, the name under which it is listed.
        renamed: for every name that lost a wrapper prefix, the name it had.
        loss_name: the name of the loss, for the record; one of `LOSSES` exactly if it is that loss with its defaults.
        mode: eval or train.
        mask_seed: the seed of dropout masks and other random layers (the global generator is left alone). It is the
            client's secret: a threat model discloses `redrawn` unless it says otherwise.
        notes: what the private copy left behind (hooks), for the record.
    """

    params: Tensors = field(repr=False)
    frozen: Tensors = field(repr=False)
    buffers: Tensors = field(repr=False)
    tied: Mapping[str, str]
    renamed: Mapping[str, str]
    loss_name: str
    mode: Mode
    mask_seed: int = 0
    notes: tuple[str, ...] = ()
    _module: nn.Module = field(repr=False)
    _loss: Loss = field(repr=False)
    _attributes: Attributes = field(repr=False)
    _origins: Origins = field(default_factory=Origins, repr=False)
    _upcast: bool = field(default=False, repr=False)
    _at: AtEmbeddings | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """One line: what is shared, the loss and the mode."""
        shared = f"{len(self.params)} tensors, {self.size:,} parameters, {str(self.dtype).removeprefix('torch.')}"
        return f"Objective({shared}, {self.loss_name}, {Mode(self.mode).value})"

    @classmethod
    def from_module(
        cls, module: nn.Module, *, loss: str | Loss = "cross_entropy", mode: Mode | str = Mode.EVAL, mask_seed: int = 0
    ) -> Objective:
        """The objective of a module.

        Args:
            module: any module; wrappers (compiled, DataParallel, DP) are taken off and their prefixes dropped.
            loss: "cross_entropy", "mse", "bce_with_logits", "nll", "causal_lm" or "masked_lm" (logits (b, T, V) against ids
                (b, T), -100 where none counts), or a callable (outputs, targets) -> scalar mean. With a name the logits of a
                Hugging Face output are taken.
            mode: "eval" or "train": the mode in which the client computed the update.
            mask_seed: seed of dropout masks.

        Raises:
            InputError: for an unknown loss name or mode, or a module without trainable parameters or without values.
            UnsupportedError: if the module cannot be copied.

        Cost: one copy of the parameters in memory.
        """
        if not isinstance(module, nn.Module):
            raise InputError(f"model: expected a torch.nn.Module, got {kind_of(module)}")
        if (isinstance(loss, str) and loss not in LOSSES) or not (isinstance(loss, str) or callable(loss)):
            raise InputError(f"loss: expected one of {', '.join(LOSSES)} or a callable, got {loss!r}")
        if mode not in tuple(Mode):
            raise InputError(f"mode: expected 'eval' or 'train', got {mode!r}")
        packed = check_trainable(module)
        private, notes, origins = private_copy(module)
        params: Tensors = {}
        frozen: Tensors = {}
        for name, parameter in private.named_parameters():
            target = params if parameter.requires_grad else frozen
            target[name] = parameter.detach()
        private.requires_grad_(False)
        private.train(mode == Mode.TRAIN)
        tied, names = further_names(private), renamed(module, private)
        ignore_running_statistics(private)
        loss_name, function, further = named_loss(loss)
        return cls(
            params=params,
            frozen=frozen,
            buffers={name: buffer.detach().clone() for name, buffer in private.named_buffers()},
            tied=tied,
            renamed=names,
            loss_name=loss_name,
            mode=Mode(mode),
            mask_seed=mask_seed,
            notes=(*notes, *packed),
            _module=private,
            _loss=function,
            _attributes=_attributes(private, function),
            _origins=origins + further,
        )

    @property
    def size(self) -> int:
        """The number of shared entries, P."""
        return sum(tensor.numel() for tensor in self.params.values())

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of parameters and buffers in the order of the model's `state_dict()`, tied weights under each of theirs."""
        return state_names(self._module)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first shared parameter."""
        return next(iter(self.params.values())).dtype

    @property
    def batch_statistics(self) -> tuple[str, ...]:
        """Names of the BatchNorm layers that normalize by the batch, so that examples depend on each other."""
        return batch_normalizers(self._module)

    @property
    def random_layers(self) -> tuple[str, ...]:
        """Names of the dropout and other layers that draw in this mode: the release is one of many, of `mask_seed`."""
        return random_layers(self._module)

    @cached_property
    def redrawn(self) -> Objective:
        """The same loss with other draws of its random layers; the same object every time.

        What others see of it, since `mask_seed` is the client's own secret.
        """
        return replace(self, mask_seed=derive_seed(self.mask_seed, "another draw"))

    def draws(self, inputs: Tensor, targets: Tensor | None = None) -> bool:
        """True if model (or loss, where targets are given) draw anything on these inputs (b, *shape).

        Random layers do by name; other code is run once and the generators are watched. True where it fails.
        """
        if self.random_layers:
            return True
        try:
            with torch.no_grad(), self._undisturbed(), watch_draws(self.device) as drawn:
                outputs = self._call(self.params, self._cast(inputs).to(self.device))
                if targets is not None:
                    evaluated(self._loss, outputs, targets.clone())
        except _REFUSALS:
            return True
        return drawn[0]

    def parts(self, kind: type[nn.Module]) -> tuple[nn.Module, ...]:
        """The parts of the model, and of a loss that is a module, of this class; to be looked at, not changed."""
        loss = self._loss.modules() if isinstance(self._loss, nn.Module) else ()
        return tuple(part for part in (*self._module.modules(), *loss) if isinstance(part, kind))

    @property
    def device(self) -> torch.device:
        """The device of the first shared parameter."""
        return next(iter(self.params.values())).device

    def outputs(self, params: Mapping[str, Tensor], inputs: Tensor) -> Any:
        """Output of the model for `inputs` (b, *shape) at `params`; buffers and inputs are never changed."""
        with self._undisturbed():
            return self._call(params, inputs)

    def loss(self, params: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """The scalar loss of `batch` at `params`; pure, and differentiable in params and inputs.

        Raises:
            InputError: if a named loss meets an output that is not a tensor.
        """
        with self._undisturbed():
            outputs = self._call(params, batch.inputs)
            if self.loss_name in LOSSES and not isinstance(outputs, Tensor):
                raise InputError(
                    f"loss {self.loss_name!r}: expected the model to return a tensor, got {type(outputs).__name__}; "
                    "pass a callable loss(outputs, targets)"
                )
            return evaluated(self._loss, outputs, batch.targets.clone())

    def loss_of_outputs(self, outputs: Any, targets: Tensor) -> Tensor:
        """The scalar loss of what the model returned; pure, and differentiable in the outputs."""
        with self._undisturbed():
            return evaluated(self._loss, outputs, targets.clone())

    def gradient(self, params: Mapping[str, Tensor], batch: Batch) -> Tensors:
        """The gradient of the loss by parameter name; one plain gradient. Works inside torch.func transforms.

        Its derivative by the inputs holds what runs through stopped gradients (`detach`, `no_grad`), at the price of a
        second evaluation (`gradient_through_stops`). Custom autograd functions without `setup_context` do not work
        inside of transforms, so that models with such layers get their gradient from plain autograd.
        """
        try:
            if not torch.compiler.is_compiling():
                refuse_inference_mode()
                through = gradient_through_stops(self._module, lambda inner: self.loss(inner, batch), params)
                if through is not None:
                    return through
            gradient: Tensors = torch.func.grad(self.loss)(dict(params), batch)
        except RuntimeError as error:
            if "setup_context" not in str(error):
                raise
            return gradient_by_autograd(partial(self.loss, batch=batch), params)
        sparse = next((name for name, tensor in gradient.items() if tensor.layout is not torch.strided), None)
        if sparse is not None:
            raise UnsupportedError(
                f"model: expected dense gradients, got a sparse one of {sparse}, which has no second derivative; call "
                "embedding(..., sparse=False) there, which gives the same numbers"
            )
        return gradient

    def stops_gradients(self, batch: Batch) -> bool:
        """True if model or loss stop gradients: a second derivative of the loss misses what A holds."""
        return stops_gradients(self._module, lambda: self.loss(self.params, batch))

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Named tensors as one vector (P,), in the order of `params`, each row-major."""
        return torch.cat([tensors[name].reshape(-1) for name in self.params])

    def unflatten(self, flat: Tensor) -> Tensors:
        """The inverse of `flatten`."""
        pieces = torch.split(flat, [tensor.numel() for tensor in self.params.values()])
        return {
            name: piece.reshape(tensor.shape) for (name, tensor), piece in zip(self.params.items(), pieces, strict=True)
        }

    def to(self, dtype: torch.dtype) -> Objective:
        """The same objective in another dtype; in float64 lower precisions that the model's code asks for are ignored."""
        if all(tensor.dtype == dtype for tensor in (*self.params.values(), *self.frozen.values())):
            return self

        def cast(tensors: Mapping[str, Tensor]) -> Tensors:
            return {k: t.to(dtype) if t.is_floating_point() else t for k, t in tensors.items()}

        module, loss = cast_constants(self._module, dtype), self._loss
        if isinstance(loss, nn.Module):
            loss = cast_constants(copy.deepcopy(loss).to(dtype), dtype)
        return replace(
            self,
            params=cast(self.params),
            frozen=cast(self.frozen),
            buffers=cast(self.buffers),
            _module=module,
            _loss=loss,
            _attributes=_attributes(module, loss),
            _upcast=dtype == torch.float64,
        )

    def in_mode(self, mode: Mode | str) -> Objective:
        """The same objective as if the client had run its model in the other mode (a copy of the module is made)."""
        if Mode(mode) is self.mode:
            return self
        module = copy.deepcopy(self._module).train(mode == Mode.TRAIN)
        ignore_running_statistics(module)
        return replace(self, mode=Mode(mode), _module=module, _attributes=_attributes(module, self._loss))

    def check(self, batch: Batch) -> None:
        """Refuse a batch that this model or loss cannot take, in one clear line.

        Raises:
            InputError: with what was expected and what came.
        """
        refuse_inference_mode()
        if batch.domain is not None and batch.domain.vocabulary is not None:
            check_vocabulary(batch.domain.vocabulary, batch.inputs, self.token_tables)
        batch.validate()
        with torch.no_grad():
            try:
                outputs = self.outputs(self.params, self._cast(batch.inputs))
            except _REFUSALS as error:
                raise InputError(
                    f"the model does not accept inputs of shape {tuple(batch.inputs.shape)}: {first_line(error)}"
                    f"{failing_part(self._module, error)}; {self._what_to_do(batch)}"
                ) from error
            if isinstance(outputs, Tensor):
                check_classes(self.loss_name, self._loss, outputs, batch.targets)
            check_paired(self.loss_name, self._loss, self.loss_of_outputs, outputs, batch.targets)
            try:
                value = self.loss(self.params, batch.to(self.dtype))
            except InputError:
                raise
            except _REFUSALS as error:
                raise InputError(
                    f"loss {self.loss_name!r} fails on targets of shape {tuple(batch.targets.shape)} and dtype "
                    f"{batch.targets.dtype}: {first_line(error)}; pass targets of the form that this loss takes"
                ) from error
        if not isinstance(value, Tensor) or value.dim() != 0 or not value.is_floating_point():
            raise InputError(
                f"loss {self.loss_name!r}: expected a scalar floating point tensor, got {form_of(value)}; "
                "reduce over the batch, for instance with .mean()"
            )
        if not bool(torch.isfinite(value)):
            ignored = ignored_index(self.loss_name, self._loss)
            counted = "" if ignored is None else f"whether any target counts (not {ignored}, class weight above 0), "
            cause = non_finite({**self.params, **self.frozen, **self.buffers})
            raise InputError(
                f"loss {self.loss_name!r}: expected a finite number, got {float(value)}; "
                f"{cause or f'check {counted}the weights of the model and the scale of the inputs'}"
            )

    def check_pairs(self, batch: Batch) -> None:
        """Refuse targets whose shape makes the loss compare outputs with the targets of other examples.

        Part of `check`, for measures that meet a batch which was never released; free for the losses that refuse such
        shapes themselves, one forward pass for others.

        Raises:
            InputError: naming both shapes.
        """
        if may_broadcast(self.loss_name):
            with torch.no_grad():
                outputs = self.outputs(self.params, batch.inputs)
                check_paired(self.loss_name, self._loss, self.loss_of_outputs, outputs, batch.targets)

    def classifier(self, domain: Domain) -> Classifier | None:
        """The linear layer whose result the model returns, or None if there is no such layer.

        Runs the model once on the middle of the domain and watches which linear map makes the output. A layer that is
        followed by anything that changes its result (a softmax, a temperature) is not the one: None.

        Raises:
            InputError: if the model does not accept an example of this domain.
        """
        recorder = LinearCalls()
        with recorder:
            outputs = self._middle_outputs(domain)
        call = recorder.maker(outputs)
        if call is None:
            return None
        names = {id(tensor): name for name, tensor in self.params.items()}
        return Classifier(
            weight=names.get(id(call.weight)), bias=names.get(id(call.bias)), classes=int(outputs.shape[-1])
        )

    def token_tables(self, length: int = 8) -> TokenTables | None:
        """The tables of a model of tokens, found by two runs on made-up sentences, once; None where it looks no ids up.

        Args:
            length: places of these sentences.

        Raises:
            InputError: if the model does not take sentences of this length.
        """
        length, tensors = max(length, 2), {**self.frozen, **self.params}  # one place may be a kind
        try:
            if length not in self._tables:
                run = partial(self.outputs, tensors)
                self._tables[length] = find_tables(run, tensors, self._module, tuple(self.params), length)
        except _REFUSALS as error:
            raise InputError(
                f"the model does not accept sentences of {length} tokens: {first_line(error)}"
                f"{failing_part(self._module, error)}; check the length and that the model takes ids"
            ) from error
        return self._tables[length]

    @cached_property
    def _tables(self) -> dict[int, TokenTables | None]:
        """Those found so far, by length."""
        return {}

    def at_embeddings(self, ids: Tensor | None = None, *, length: int = 8) -> Objective:
        """The same loss as a function of embeddings: inputs are floats (b, T, d), what the lookup of words gives.

        Everything else stays that of the model: positions are added, heads are tied. The word table is shared as before.
        With `ids` its gradient is that of the model, the derivative by the embeddings scattered to the rows of these ids, so
        that at `embed(ids)` the whole gradient is that of the ids; without, the lookup adds nothing to it.

        Args:
            ids: (b, T) behind the embeddings, or None where nobody knows them.
            length: places of the sentences that the tables are looked for with, where there are no ids.

        Raises:
            UnsupportedError: if the model looks ids up in no `nn.Embedding`.
        """
        found = self._at.tables if self._at else self.token_tables(length if ids is None else ids.shape[1])
        return replace(self, _at=AtEmbeddings.of(found, self._module, ids, {**self.frozen, **self.params}))

    def of_example(self, place: Tensor | None) -> Objective:
        """The same for one example of the batch by its place; itself but at embeddings of ids. None for whichever ids."""
        at = self._at
        return self if at is None or at.ids is None else replace(self, _at=at.of_example(place))

    def embed(self, ids: Tensor) -> Tensor:
        """The rows of the word table (b, T, d) for ids (b, T); places without a token (-1) have that of the padding."""
        weights = {**self.frozen, **self.params}
        at = self._at or AtEmbeddings.of(self.token_tables(ids.shape[1]), self._module, None, weights)
        return at.rows(weights[at.tables.word], ids)

    def output_shape(self, domain: Domain) -> tuple[int, ...] | None:
        """The shape of the output for one example of the domain, or None if the output is not a tensor."""
        outputs = self._middle_outputs(domain)
        return tuple(outputs.shape[1:]) if isinstance(outputs, Tensor) else None

    def _call(self, params: Mapping[str, Tensor], inputs: Tensor) -> Any:
        state: dict[str, Tensor] = {**self.frozen, **params}
        state |= {name: buffer.clone() for name, buffer in self.buffers.items()}
        at = self._at if inputs.is_floating_point() else None
        words: Any = nullcontext() if at is None else at.within(state[at.tables.word], inputs)
        with ALWAYS.within(self._module), words:
            args, named = arguments(self._module, (inputs if at is None else at.ids_for(inputs)).clone())
            outputs = torch.func.functional_call(self._module, state, args, named, tie_weights=True)
        return logits_of(outputs) if self.loss_name in LOSSES else outputs

    def _cast(self, inputs: Tensor) -> Tensor:
        return inputs.to(self.dtype) if inputs.is_floating_point() else inputs

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Random layers draw from `mask_seed`; the module and the global generators are as before afterwards."""
        if torch.compiler.is_compiling() and self.mode is Mode.EVAL:
            yield
            return
        precision = in_float64() if self._upcast else nullcontext()
        masks = masks_of(self.mask_seed, self.device)
        with ONE_CALL, precision, self._attributes.kept(), masks, without_checkpointing():
            yield

    def _middle_outputs(self, domain: Domain) -> Any:
        """Output of the model for the middle of the domain; two examples where BatchNorm would refuse one."""
        middle = domain.middle(next(iter(self.params.values())), 2 if self.mode is Mode.TRAIN else 1)
        with torch.no_grad():
            try:
                return self.outputs(self.params, middle)
            except _REFUSALS as error:
                raise InputError(
                    f"the model does not accept an example of shape {domain.shape}: {first_line(error)}"
                    f"{failing_part(self._module, error)}; check the shape of the domain"
                ) from error

    def _what_to_do(self, batch: Batch) -> str:
        if batch.inputs.device != self.device:
            return f"check the device: the model is on {self.device}, the batch on {batch.inputs.device}"
        if self.mode is Mode.TRAIN and batch.size == 1 and self.batch_statistics:
            return "BatchNorm in train mode may need two examples: take more, or mode='eval' if the client ran so"
        if not batch.inputs.is_floating_point():
            return "check that its ids, its length and its vocabulary are those of the model, and that ids come first"
        return "check the number of channels and the size of an example"


def _attributes(*parts: object) -> Attributes:
    return Attributes(*(part for part in parts if isinstance(part, nn.Module)))

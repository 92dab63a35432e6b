"""Attention of torch with linear layers of its own, which methods factorize, adapt and cut as they do all others."""

from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from edgefl.models.ties import tied
from edgefl.models.weights import PROJECTIONS

_HINTS: dict[type[nn.Module], tuple[str, int]] = {
    nn.TransformerEncoder: ("is_causal", 3),
    nn.TransformerDecoder: ("tgt_is_causal", 6),
}
"""Class of torch → the argument of its ``forward`` that says whether the mask is causal, and the argument's position."""
_NOTED = ("num_heads", "dropout", "batch_first", "add_zero_attn")


class OpenAttention(nn.Module):
    """``nn.MultiheadAttention`` made of the linear layers ``q_proj``, ``k_proj``, ``v_proj`` and ``out_proj``.

    >>> plain = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.randn(3, 5, 8)
    >>> torch.allclose(OpenAttention(plain)(x, x, x)[0], plain(x, x, x)[0], atol=1e-6)
    True
    """

    num_heads: int
    dropout: float
    batch_first: bool
    add_zero_attn: bool
    q_proj: Any
    k_proj: Any
    v_proj: Any
    out_proj: Any
    bias_k: Any
    bias_v: Any
    # Torch's fused kernels, for which the encoder around it asks, would read the weights themselves.
    _qkv_same_embed_dim = False

    def __init__(self, plain: nn.MultiheadAttention) -> None:
        super().__init__()
        for name in _NOTED:
            setattr(self, name, getattr(plain, name))
        packed, bias = plain.in_proj_weight, plain.in_proj_bias
        weights = [getattr(plain, f"{name}_weight") for name in PROJECTIONS] if packed is None else packed.chunk(3)
        biases = (None, None, None) if bias is None else bias.chunk(3)
        trains = [weight.requires_grad if packed is None else packed.requires_grad for weight in weights]
        for name, weight, part, trained in zip(PROJECTIONS, weights, biases, trains, strict=True):
            setattr(self, name, _linear(weight, part, trained, bias is not None and bias.requires_grad))
        self.out_proj = plain.out_proj
        self.bias_k, self.bias_v = plain.bias_k, plain.bias_v
        self.train(plain.training)

    @property
    def embed_dim(self) -> int:
        """Channels of the output."""
        return int(self.out_proj.out_features)

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return int(self.q_proj.out_features) // self.num_heads

    @property
    def in_proj_weight(self) -> Tensor | None:
        """The three weights in one (3E, E), as torch has them; None if keys or values have another number of channels."""
        weights = [getattr(self, name).weight for name in PROJECTIONS]
        return torch.cat(weights) if len({weight.shape for weight in weights}) == 1 else None

    @property
    def in_proj_bias(self) -> Tensor | None:
        """The three biases in one (3E,); None without biases, and if a layer has factors in its place."""
        biases = [getattr(getattr(self, name), "bias", None) for name in PROJECTIONS]
        present = [bias for bias in biases if bias is not None]
        return torch.cat(present) if len(present) == len(biases) else None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output, of the shape of ``query``, and the weights (batch, [heads,] queries, keys) if they are needed."""
        if is_causal and attn_mask is None:
            raise RuntimeError("is_causal says what attn_mask is; give attn_mask too")
        batched = query.dim() == 3
        query, key, value = (self._batch_first(x, batched) for x in (query, key, value))
        k, v = self.k_proj(key), self.v_proj(value)
        if self.bias_k is not None:
            k, v = (torch.cat((x, bias.expand(len(x), -1, -1)), 1) for x, bias in ((k, self.bias_k), (v, self.bias_v)))
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (self.q_proj(query), k, v))
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        whole = is_causal and key_padding_mask is None and not need_weights  # the mask says no more than that
        mask = None if whole else self._mask(key_padding_mask, attn_mask, k.shape[2] - key.shape[1], q.dtype)
        dropped = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
            weights = (scores if mask is None else scores + mask).softmax(-1)
            weights = F.dropout(weights, dropped) if dropped else weights
            mixed = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, mask, dropped, is_causal=whole)
        out = self.out_proj(mixed.transpose(1, 2).contiguous().flatten(2))  # the same operations for any number of channels
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _batch_first(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _mask(self, padding: Tensor | None, mask: Tensor | None, more: int, dtype: torch.dtype) -> Tensor | None:
        """Return what is added to the scores (batch, heads, queries, keys), or broadcasts to them; ``more`` keys are never masked."""
        masks = []
        if mask is not None:
            masks.append(mask if mask.dim() == 2 else mask.unflatten(0, (-1, self.num_heads)))
        if padding is not None:
            masks.append(padding[..., None, None, :] if padding.dim() == 2 else padding)
        added = [torch.zeros_like(m, dtype=dtype).masked_fill(m, -torch.inf) if m.dtype == torch.bool else m for m in masks]
        added = [F.pad(m, (0, more)) for m in added] if more else added
        return sum(added[1:], added[0]) if added else None


def opened(network: nn.Module) -> nn.Module:
    """Return ``network`` with :class:`OpenAttention` in the place of every ``nn.MultiheadAttention`` of torch's own class.

    One with hooks, or with weights that are computed or have a second name, stays. Encoders and decoders use a mask as it is given.
    """
    shared = {name for names in tied(network) for name in names}
    names = {module: name for name, module in network.named_modules()}
    for parent in list(names):
        for child, module in parent.named_children():
            if type(module) is nn.MultiheadAttention and _is_plain(module, names[module], shared):
                setattr(parent, child, OpenAttention(module))
    for module in network.modules():
        if isinstance(module, nn.TransformerEncoder) and any(isinstance(part, OpenAttention) for part in module.modules()):
            module.use_nested_tensor = False  # only the fused kernels take such tensors
    return unhinted(network)


def unhinted(network: nn.Module) -> nn.Module:
    """Return ``network`` with encoders and decoders that use a mask as it is given, so that they can be traced."""
    for module in network.modules():
        if (hint := _HINTS.get(type(module))) is not None:
            module.register_forward_pre_hook(_unhinted(*hint), with_kwargs=True)
    return network


def closed(network: nn.Module, original: nn.Module) -> nn.Module:
    """Return ``network`` with ``nn.MultiheadAttention`` again where its layers are those of torch; ``original`` has it everywhere."""
    before = dict(original.named_modules())
    for name, parent in list(network.named_modules()):
        for child, module in parent.named_children():
            plain = before.get(f"{name}.{child}".lstrip("."))
            if isinstance(module, OpenAttention) and isinstance(plain, nn.MultiheadAttention) and _closes(module):
                setattr(parent, child, _closed(module))
    for name, module in network.named_modules():
        if isinstance(module, nn.TransformerEncoder) and not any(isinstance(part, OpenAttention) for part in module.modules()):
            module.use_nested_tensor = getattr(before.get(name), "use_nested_tensor", False)
    return network


def _unhinted(hint: str, position: int) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return a hook that says that a mask is not causal unless a network says that it is.

    Otherwise torch compares its values with those of a causal mask, which cannot be traced. The result is the same.
    """

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if len(args) > position:
            return (*args[:position], bool(args[position]), *args[position + 1 :]), kwargs
        return args, {**kwargs, hint: bool(kwargs.get(hint))}

    return hook


def _is_plain(module: nn.MultiheadAttention, name: str, shared: Collection[str]) -> bool:
    hooked = module._forward_hooks or module._forward_pre_hooks or module.out_proj._forward_hooks or "forward" in vars(module)
    computed = any(is_parametrized(part) for part in module.modules())
    return not (hooked or computed or any(f"{name}.{tensor}" in shared for tensor in module.state_dict()))


def _linear(weight: Tensor, bias: Tensor | None, trains: bool, trains_bias: bool) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")  # without random draws
    layer.weight = nn.Parameter(weight.detach().clone(), trains)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), trains_bias)
    return layer


def _closes(module: OpenAttention) -> bool:
    """Whether torch's class has a form for the layers of ``module``: not for factors, and not if heads are not as wide as the output."""
    layers = [getattr(module, name) for name in (*PROJECTIONS, "out_proj")]
    if any(type(layer).__module__.partition(".")[0] != "torch" or is_parametrized(layer) for layer in layers):
        return False
    return len({*layers[0].weight.shape, *layers[3].weight.shape}) == 1


def _closed(module: OpenAttention) -> nn.MultiheadAttention:
    layers = [getattr(module, name) for name in PROJECTIONS]
    plain = nn.MultiheadAttention(
        *(len(layers[0].weight), module.num_heads),
        dropout=module.dropout,
        bias=layers[0].bias is not None,
        add_bias_kv=module.bias_k is not None,
        add_zero_attn=module.add_zero_attn,
        kdim=layers[1].weight.shape[1],
        vdim=layers[2].weight.shape[1],
        batch_first=module.batch_first,
        device="meta",
    )
    if plain.in_proj_weight is not None:
        plain.in_proj_weight = nn.Parameter(
            torch.cat([layer.weight.detach() for layer in layers]), layers[0].weight.requires_grad
        )
    else:
        for name, layer in zip(PROJECTIONS, layers, strict=True):
            setattr(plain, f"{name}_weight", layer.weight)
    if plain.in_proj_bias is not None:
        plain.in_proj_bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers]), layers[0].bias.requires_grad)
    plain.out_proj, plain.bias_k, plain.bias_v = module.out_proj, module.bias_k, module.bias_v
    return plain.train(module.training)

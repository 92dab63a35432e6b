"""Multiply-accumulates of tensor operations, in three tables: counted, ignored for a written reason, and unsupported.

A MAC is one multiplication and one addition of a convolution or matrix product. The operations are those that torch dispatches, so a layer
counts as often as it runs. A backward pass counts only the gradients that it needs: none for the first layer's input. Everything that works
value by value (activations, normalisation, pooling, the optimizer) is counted apart, in values: never as MACs.

MACs are those of real numbers: a product of complex tensors has four per complex multiplication and addition, and a complex value counts
as two. A complex convolution counts three times a real one, because torch computes it as three real ones.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from edgefl.cost.bilinear import product_macs

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class OpWork:
    """The work of one operation: MACs, of a backward operation the parts for its input and its weight, and values worked on."""

    macs: int = 0
    macs_input: int | None = None
    macs_weight: int | None = None
    elementwise: int = 0


Arguments = tuple[Any, ...]
Count = Callable[[Arguments, Any], OpWork]


def _convolution(args: Arguments, out: Tensor) -> OpWork:
    x, weight, transposed = args[0], args[1], args[6]
    # Each output value sums over the kernel and its input channels; a transposed one is counted from its input.
    values = x if transposed else out
    return OpWork(values.numel() * math.prod(weight.shape[1:]))


def _convolution_backward(args: Arguments, out: tuple[Tensor | None, ...]) -> OpWork:
    gradient, x, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
    # The input's and the weight's gradient each revisit every product of the forward pass once.
    macs = (x if transposed else gradient).numel() * math.prod(weight.shape[1:])
    return _both(macs * int(mask[0]), macs * int(mask[1]))


def _both(macs_input: int, macs_weight: int) -> OpWork:
    return OpWork(macs_input + macs_weight, macs_input, macs_weight)


def _product(first: int) -> Count:
    """Count a matrix product: each output value sums over the last dimension of argument ``first``."""
    return lambda args, out: OpWork(out.numel() * int(args[first].shape[-1]))


def _attention(args: Arguments, out: Any) -> OpWork:
    """Count Q Kᵀ and its product with V: (…, T, d), (…, S, d), (…, S, e), every position of every query (also masked ones)."""
    query, value = args[0], args[2]
    pairs = math.prod(query.shape[:-1]) * int(args[1].shape[-2])
    return OpWork(pairs * (int(query.shape[-1]) + int(value.shape[-1])))


def _attention_backward(args: Arguments, out: Any) -> OpWork:
    """Count the four products of dQ, dK, dV and the probabilities' gradient: twice the forward pass.

    That a kernel computes the forward product again rather than store it is its own trade of time for memory.
    """
    forward = _attention(args[1:], out)
    return _both(2 * forward.macs, 0)


def _rnn_layer(args: Arguments, out: Any) -> OpWork:
    """Count all gates of all steps: x (T, B, I) by (gates·H, I), and the hidden state by (gates·H, H)."""
    x, weight_input, weight_hidden = args[0], args[1], args[2]
    return OpWork(math.prod(x.shape[:2]) * (weight_input.numel() + weight_hidden.numel()))


def _rnn_layer_backward(args: Arguments, out: Any) -> OpWork:
    x, weights = args[0], args[1:3]
    weight_input, weight_hidden = weights
    positions = math.prod(x.shape[:2])
    through_time = positions * weight_hidden.numel()
    to_input = positions * weight_input.numel() if x.requires_grad else 0
    return _both(through_time + to_input, positions * sum(weight.numel() for weight in weights if weight.requires_grad))


def _distances(pairs: Tensor, rows: Tensor) -> OpWork:
    """Count distances, one for each value of ``pairs``, of rows like those of ``rows``: element-wise work on each of their values."""
    return OpWork(elementwise=pairs.numel() * int(rows.shape[-1]))


def _fourier(args: Arguments, out: Tensor) -> OpWork:
    """Count log₂ n passes through all values for a fast Fourier transform of n values: element-wise work, no product of matrices."""
    length = max(math.prod(int(tensor.shape[place]) for place in args[1]) for tensor in (args[0], out))
    return OpWork(elementwise=max(_values(args), _values(out)) * max(1, (length - 1).bit_length()))


COUNTED: dict[Any, Count] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.mm.default: _product(0),
    aten.bmm.default: _product(0),
    aten.mv.default: _product(0),
    aten.dot.default: lambda args, out: OpWork(args[0].numel()),
    aten.vdot.default: lambda args, out: OpWork(args[0].numel()),
    aten.addmm.default: _product(1),
    aten.addmv.default: _product(1),
    aten.baddbmm.default: _product(1),
    aten.addbmm.default: lambda args, out: OpWork(args[1].numel() * int(args[2].shape[-1])),
    aten.addmm_.default: _product(1),
    aten.addr.default: lambda args, out: OpWork(out.numel()),
    aten._trilinear.default: lambda args, out: OpWork(product_macs(args)),
    # That torch multiplies matrices for the distances of many rows is its own trade; an exported graph does not.
    aten._euclidean_dist.default: lambda args, out: _distances(out, args[0]),
    aten._cdist_forward.default: lambda args, out: _distances(out, args[0]),
    aten._cdist_backward.default: lambda args, out: _distances(args[4], args[1]),
    aten._pdist_forward.default: lambda args, out: _distances(out, args[0]),
    aten._pdist_backward.default: lambda args, out: _distances(args[3], args[1]),
    aten._fft_r2c.default: _fourier,
    aten._fft_c2r.default: _fourier,
    aten._fft_c2c.default: _fourier,
    aten.mkldnn_rnn_layer.default: _rnn_layer,
    aten.mkldnn_rnn_layer_backward.default: _rnn_layer_backward,
    **{
        getattr(aten, f"_scaled_dot_product_{kernel}{ending}").default: count
        for kernel in ("flash_attention_for_cpu", "flash_attention", "efficient_attention")
        for ending, count in (("", _attention), ("_backward", _attention_backward))
    },
}


def _for(reason: str, names: str, *others: Any) -> dict[Any, str]:
    """Return the operations of these names, each with ``reason``; those that this release of torch does not have cannot occur."""
    return dict.fromkeys([getattr(aten, name) for name in names.split() if hasattr(aten, name)] + list(others), reason)


IGNORED: dict[Any, str] = {
    **_for(
        "moves, creates or reinterprets values",
        """
        clone copy_ copy _to_copy empty empty_like zeros zeros_like ones new_zeros new_ones new_full ones_like full full_like
        fill_ fill zero_ zero cat stack constant_pad_nd _unsafe_view new_empty new_empty_strided empty_strided select_backward
        slice_backward scalar_tensor lift_fresh arange resize_ set_ unsafe_split unsafe_split_with_sizes repeat
        repeat_interleave roll flip rot90 eye tril triu tril_ triu_ linspace diagonal_backward channel_shuffle
        native_channel_shuffle pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d reflection_pad1d_backward
        reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward replication_pad1d replication_pad1d_backward
        replication_pad2d replication_pad2d_backward replication_pad3d replication_pad3d_backward _reshape_copy
        _reshape_alias im2col col2im unfold_backward diag_embed logspace exponential_ as_strided_ detach_ t_ transpose_
        squeeze_ unsqueeze_ split_with_sizes_copy unbind_copy bernoulli bernoulli_ rand rand_like randn randn_like randint
        randint_like randperm normal normal_ uniform_ cauchy_ geometric_ log_normal_ tril_indices triu_indices alias_copy
        as_strided_copy diagonal_copy expand_copy narrow_copy permute_copy squeeze_copy t_copy transpose_copy unfold_copy
        unsqueeze_copy view_copy as_strided_scatter diagonal_scatter select_scatter slice_scatter block_diag complex
        empty_permuted resize_as_ _chunk_cat _efficientzerotensor
        """,
    ),
    **_for(
        "reads, writes or orders rows and positions",
        """
        index index_put index_put_ _index_put_impl_ _unsafe_index _unsafe_index_put index_select index_add index_add_ gather
        scatter scatter_ scatter_add scatter_add_ scatter_reduce index_fill index_copy embedding embedding_dense_backward
        _embedding_bag _embedding_bag_forward_only _embedding_bag_backward _embedding_bag_dense_backward sort topk argsort
        masked_select nonzero searchsorted bucketize one_hot multinomial masked_scatter masked_scatter_backward put take
        index_reduce max_unpool2d max_unpool3d kthvalue mode nanmedian unique_consecutive _unique _unique2 isin nonzero_static
        histc _unsafe_masked_index _unsafe_masked_index_put_accumulate
        """,
    ),
    **_for(
        "asks for a property or marks a profile",
        "sym_size sym_stride sym_numel sym_storage_offset is_same_size _local_scalar_dense",
        *(torch.ops.prim.device, torch.ops.prim.layout),
        *(torch.ops.profiler._record_function_enter_new, torch.ops.profiler._record_function_exit),
    ),
}

ELEMENTWISE: dict[Any, str] = {
    **_for(
        "sums or compares values, no product of two tensors: counted as element-wise work",
        """
        sum mean prod amax amin aminmax max min argmax argmin any all var var_mean std std_mean norm linalg_vector_norm
        logsumexp cumsum cumprod _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
        _adaptive_avg_pool3d_backward avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward adaptive_max_pool2d
        adaptive_max_pool2d_backward max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
        max_pool3d_with_indices_backward adaptive_max_pool3d adaptive_max_pool3d_backward fractional_max_pool2d
        fractional_max_pool2d_backward upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d
        upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward _upsample_nearest_exact1d
        _upsample_nearest_exact1d_backward _upsample_nearest_exact2d _upsample_nearest_exact2d_backward
        _upsample_nearest_exact3d _upsample_nearest_exact3d_backward upsample_linear1d upsample_linear1d_backward
        upsample_bilinear2d upsample_bilinear2d_backward upsample_trilinear3d upsample_trilinear3d_backward
        _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward upsample_bicubic2d upsample_bicubic2d_backward
        _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d
        grid_sampler_3d_backward nansum median cummax cummin renorm fractional_max_pool3d fractional_max_pool3d_backward
        count_nonzero logcumsumexp trace dist linalg_cross segment_reduce _segment_reduce_backward
        _embedding_bag_per_sample_weights_backward affine_grid_generator
        """,
    ),
    **_for(
        "a few operations a value: counted as element-wise work",
        """
        native_group_norm native_group_norm_backward native_batch_norm native_batch_norm_backward _native_batch_norm_legit
        _native_batch_norm_legit_functional _native_batch_norm_legit_no_training batch_norm_backward _batch_norm_with_update
        _batch_norm_no_update native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward _softmax
        _softmax_backward_data _log_softmax _log_softmax_backward_data _safe_softmax _masked_softmax _masked_softmax_backward
        nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward native_dropout native_dropout_backward
        mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward soft_margin_loss
        soft_margin_loss_backward multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward
        multilabel_margin_loss_backward binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits
        _weight_norm_interface _weight_norm_interface_backward _ctc_loss _ctc_loss_backward
        """,
    ),
    # Pointwise by nature; older releases of torch do not tag all of them.
    **_for(
        "works value by value: counted as element-wise work",
        """
        hardswish gelu_backward silu_backward hardswish_backward hardsigmoid_backward hardtanh_backward elu_backward leaky_relu_backward
        softplus_backward threshold_backward tanh_backward sigmoid_backward mish_backward glu glu_backward _prelu_kernel
        _prelu_kernel_backward hardswish_ hardsigmoid_ hardtanh_ silu_ leaky_relu_ elu_ gelu_ mish_ masked_fill masked_fill_
        where rsub floor_divide lerp_ addcmul_ addcdiv_ _foreach_add_ _foreach_mul_ relu6 rrelu_with_noise
        rrelu_with_noise_backward log_sigmoid_forward log_sigmoid_backward softshrink_backward hardshrink_backward polar
        """,
    ),
}


def work_of(operation: Any, args: Arguments, out: Any) -> OpWork | None:
    """Return the work of one dispatched operation; None when it is in no table."""
    if operation in COUNTED:
        work = COUNTED[operation](args, out)
        return replace(work, macs=4 * work.macs) if isinstance(out, Tensor) and out.is_complex() else work
    packet = operation.overloadpacket
    if operation.is_view or packet in IGNORED:
        return _NOTHING
    if packet in ELEMENTWISE or torch.Tag.pointwise in operation.tags:
        return OpWork(elementwise=max(_values(args), _values(out)))
    return None


_NOTHING = OpWork()


def _values(given: Any) -> int:
    """Return the real values of the largest tensor among arguments or results: what an element-wise operation goes through."""
    among = given if isinstance(given, (tuple, list)) else (given,)
    return max((value.numel() * (1 + value.is_complex()) for value in among if isinstance(value, Tensor)), default=0)

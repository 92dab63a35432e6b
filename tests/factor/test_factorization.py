"""Leading vectors: as good as they are said to be, the same bits whatever computes them, and full decompositions where they are not."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest
import torch
from runs import checkpoint_of, stopped_after

from edgefl import RunConfig
from edgefl.factor import subspace
from edgefl.factor.svd import Factors, counted, factorize, singular_values, truncated
from edgefl.methods.create import create
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.records import Tier, Update
from edgefl.rng import generator
from edgefl.server.checkpoint import of_file, save
from edgefl.server.state import ServerState
from edgefl.util.compute import in_parallel

RANKS = [16, 40, 80]
NETWORK = Architecture("resnet9", (3, 8, 8), 10)


def matrix_of(values: np.ndarray, rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Return a matrix with these singular values."""
    rng, n = generator(seed, "matrix"), min(rows, columns)
    u, v = (np.linalg.qr(rng.standard_normal((size, n)))[0] for size in (rows, columns))
    return torch.from_numpy((u * values) @ v.T).float()


def spectrum(name: str, n: int) -> np.ndarray:
    i = np.arange(n)
    return {
        "flat": np.ones(n) + 0.01 * np.cos(i),
        "power": 1 / (1 + i),
        "steps": np.where(i < 40, 1.0, np.where(i < 80, 0.3, 0.02)) * (1 - i / (4 * n)),
        "multiple": np.where(i < 85, 1.0, 0.5),
        "small tail": np.where(i < 80, 1.0, 1e-3) * (1 - i / (4 * n)),
        "tiny tail": np.where(i < 80, 1.0, 1e-5) * (1 - i / (4 * n)),
        "random": np.linalg.svd(generator(1, "random").standard_normal((n, n + 100)), compute_uv=False),
    }[name]


def worst_excess(matrix: torch.Tensor, factors: Factors, ranks: list[int]) -> float:
    """Return the largest error over the least possible, less 1."""
    squares = torch.linalg.svdvals(matrix.double()).square()
    errors = {r: (matrix.double() - (lambda u, v: u.double() @ v.double())(*factors.leading(r))).norm() for r in ranks}
    return max(float(error / squares[r:].sum().sqrt()) - 1 for r, error in errors.items())


SPECTRA = ["flat", "power", "steps", "multiple", "small tail", "tiny tail", "random"]
# What is taller than wide is decomposed as its transpose, whatever its values.
DECOMPOSED = [(name, shape) for name in SPECTRA for shape in ((300, 300), (300, 500))]
DECOMPOSED += [(name, (520, 320)) for name in ("flat", "steps", "random")]


@pytest.mark.parametrize(("name", "shape"), DECOMPOSED)
def test_every_rank_is_within_the_tolerance_of_the_best_from_nothing_and_from_the_last_round(name, shape):
    matrix = matrix_of(spectrum(name, min(shape)), *shape)
    first = truncated(matrix, RANKS)
    assert worst_excess(matrix, first, RANKS) <= subspace.TOLERANCE
    noise = torch.from_numpy(generator(3, "noise").standard_normal(shape)).float()
    after = matrix + 0.03 * matrix.norm() / noise.norm() * noise
    second = truncated(after, RANKS, first.start)
    if name != "flat":  # of values that are all the same within a hundredth it can hardly be shown
        assert (first.way, second.way) == ("block", "block")
    assert worst_excess(after, second, RANKS) <= subspace.TOLERANCE
    assert second.left.shape == (shape[0], 80)
    assert second.left.is_contiguous()
    assert torch.allclose(second.values[:80], torch.linalg.svdvals(after.double())[:80], rtol=1e-2)
    roots = second.values[:80].sqrt()
    assert torch.allclose(second.left.double().norm(dim=0), roots, rtol=1e-5)
    assert torch.allclose(second.right.double().norm(dim=1), roots, rtol=1e-5)


def test_what_misses_a_leading_vector_is_not_shown_even_where_its_residual_is_nothing():
    """Exact singular vectors, but for the largest, or one in the middle: an invariant subspace, the wrong one."""
    matrix = matrix_of(spectrum("power", 300), 300, 400)
    u, s, v = (part.float() for part in torch.linalg.svd(matrix.double(), full_matrices=False))
    energy = float(s.double().square().sum())

    def shown(chosen: list[int]) -> bool:
        ritz = subspace._Ritz(u[:, chosen], s[chosen, None] * v[chosen], s[chosen].double().square())
        return subspace._shown(matrix, ritz, ritz.tails(matrix, energy), RANKS, 0.0)

    every = list(range(130))
    assert shown(every[:128])
    for missing in (0, 10, 79):
        assert not shown([i for i in every if i != missing][:128])
    assert shown([i for i in every if i != 120][:128])  # of the guard: no rank needs it


@pytest.mark.parametrize("shape", [(300, 300), (300, 500)])
def test_the_bound_is_above_what_was_missed(shape):
    """Of blocks that have not converged: d of the top of subspace.py, from all eigenvalues, against the bound."""
    for name in ("steps", "power", "random"):
        matrix = matrix_of(spectrum(name, 300), *shape)
        block = torch.from_numpy(generator(5, name).standard_normal((300, 128))).float()
        w, eigenvalues = matrix.double(), torch.linalg.svdvals(matrix.double()).square()
        for _ in range(4):
            basis = subspace._powered(w, block.double(), None, float(eigenvalues.sum()))
            ritz = subspace._ritz(w, basis)
            block = ritz.left
            rest = w - ritz.left @ ritz.right
            largest = float(torch.linalg.matrix_norm(rest, 2)) ** 2
            residuals = (rest @ ritz.right.T).square().sum(0).cumsum(0)
            for rank in RANKS:
                missed = float(eigenvalues[:rank].sum() - ritz.values[:rank].sum())
                assert missed <= subspace._missed(ritz.values, residuals, rank, largest) * (1 + 1e-9) + 1e-12


def test_where_the_bound_does_not_hold_the_full_decomposition_takes_over(monkeypatch):
    matrix = matrix_of(spectrum("steps", 300), 300, 320)
    monkeypatch.setattr(subspace, "_shown", lambda *of: False)
    found, full = truncated(matrix, RANKS), factorize(matrix, 80)
    assert (found.way, found.start) == ("fallback", None)
    assert torch.equal(found.left, full.left)
    assert torch.equal(found.right, full.right)
    assert counted([found, full]) == {"block": 0, "full": 1, "fallback": 1}


@pytest.mark.parametrize("rank", [0, 1, 10, 79, 80, 81, 128])
def test_matrices_of_a_rank_of_their_own(rank):
    """Nothing to cut off but the rounding of the weights: that is what factors in float32 are held to."""
    low = matrix_of(np.where(np.arange(300) < rank, 1.0, 0.0), 300, 320)
    noisy = low + 0.01 * matrix_of(np.where(np.arange(300) < 5, 1.0, 0.0), 300, 320, 1)
    start = None
    for matrix in (low, noisy, low):
        found = truncated(matrix, RANKS, start)
        start = found.start
        squares = torch.linalg.svdvals(matrix.double()).square()
        for r in RANKS:
            left, right = found.leading(r)
            error = (matrix.double() - left.double() @ right.double()).norm()
            assert error <= (1 + subspace.TOLERANCE) * squares[r:].sum().sqrt() + 2.0**-22 * matrix.norm()


def test_directions_without_energy_are_nothing_in_both_factors():
    matrix = torch.zeros(300, 320)
    matrix[range(10), range(10)] = torch.arange(10.0, 0.0, -1.0)
    for start in (None, torch.eye(300)):
        left, right = truncated(matrix, RANKS, start).leading(80)
        assert torch.isfinite(left).all()
        assert torch.isfinite(right).all()
        assert torch.allclose(left @ right, matrix, atol=1e-5)
    zero = truncated(torch.zeros(300, 300), RANKS)
    assert torch.equal(zero.left @ zero.right, torch.zeros(300, 300))


def test_small_and_nearly_full_decompositions_are_full_ones():
    for shape, rank in (((12, 20), 8), ((255, 300), 20), ((300, 300), 103), ((1, 5), 1), ((5, 1), 1)):
        matrix = torch.from_numpy(generator(0, "small").standard_normal(shape)).float()
        assert truncated(matrix, [rank]).way == "full"
        assert torch.equal(truncated(matrix, [rank]).left, factorize(matrix, rank).left)
    assert truncated(torch.eye(300, dtype=torch.float64), [3]).way == "full"


def test_scale_does_not_matter():
    matrix = matrix_of(spectrum("power", 300), 300, 320)
    plain = truncated(matrix, RANKS)
    for exponent in (-80, 80):
        scaled = truncated(matrix * 2.0**exponent, RANKS)
        assert scaled.way == "block"
        assert worst_excess(matrix * 2.0**exponent, scaled, RANKS) <= subspace.TOLERANCE
        left, right = (factor * 2.0 ** (-exponent // 2) for factor in scaled.leading(80))
        assert torch.allclose(left @ right, (lambda u, v: u @ v)(*plain.leading(80)), atol=1e-6)


def test_a_start_of_any_kind_is_a_guess_only():
    matrix = matrix_of(spectrum("steps", 300), 300, 320)
    start = truncated(matrix, RANKS).start
    assert start is not None
    for guess in (
        start[:, :50],
        start[:, :1],
        torch.zeros(300, 128),
        torch.ones(300, 128),
        start.double(),
        torch.ones(7, 128),
        start[:, 64:],
    ):
        found = truncated(matrix, RANKS, guess)
        assert worst_excess(matrix, found, RANKS) <= subspace.TOLERANCE
    strided = matrix.T.contiguous().T
    assert torch.equal(truncated(strided, RANKS, start).left, truncated(matrix, RANKS, start).left)


@pytest.mark.parametrize("name", ["steps", "tiny tail"])
def test_bits_do_not_depend_on_where_in_memory_and_how_arguments_lie(name):
    matrix = matrix_of(spectrum(name, 300), 300, 320)
    start = truncated(matrix, RANKS).start
    assert start is not None
    after = matrix * 1.01
    expected = truncated(after, RANKS, start)

    def shifted(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape).copy_(tensor)

    for make in (lambda t: t.clone(), lambda t: t.T.contiguous().T, shifted):
        for found in (truncated(make(after), RANKS, start), truncated(after, RANKS, make(start))):
            assert torch.equal(found.left, expected.left)
            assert torch.equal(found.right, expected.right)
            assert torch.equal(found.start, expected.start)


def test_what_is_no_number_is_refused():
    from edgefl.errors import EdgeflError

    matrix = torch.ones(300, 300)
    matrix[5, 5] = math.nan
    with pytest.raises(EdgeflError, match="holds NaN or infinity"):
        truncated(matrix, [10])


def test_all_values_without_vectors():
    matrix = matrix_of(spectrum("power", 300), 320, 300)
    assert torch.allclose(singular_values(matrix), torch.linalg.svdvals(matrix.double()), atol=1e-8)


def test_bits_do_not_depend_on_threads(monkeypatch):
    matrices = {f"m{i}": matrix_of(spectrum(name, 300), 300, 400, i) for i, name in enumerate(SPECTRA)}
    before = torch.get_num_threads()

    def bits(torch_threads: int, cores: int) -> dict[str, Factors]:
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
        torch.set_num_threads(torch_threads)
        try:
            found = in_parallel({name: lambda m=m: truncated(m, RANKS) for name, m in matrices.items()})
            assert torch.get_num_threads() == torch_threads
        finally:
            torch.set_num_threads(before)
        return found

    one, others = bits(1, 1), [bits(2, 1), bits(1, 3), bits(2, 8)]
    for other in others:
        for name, factors in one.items():
            assert torch.equal(factors.left, other[name].left)
            assert torch.equal(factors.right, other[name].right)


def test_an_error_in_a_task_is_raised():
    with pytest.raises(ZeroDivisionError):
        in_parallel({"fine": lambda: 1.0, "wrong": lambda: 1 / 0})
    assert in_parallel({}) == {}


# FedHM hands the vectors on.


def after_a_round(method: Any, state: GlobalState, number: int = 1) -> GlobalState:
    updates = []
    for client, tier in enumerate(state.tiers):
        submodel, rng = method.submodel(state, tier, generator(0)), generator(number, client)
        noise = {
            n: torch.from_numpy(rng.standard_normal(t.shape)).float() * 0.02 * t.std()
            for n, t in submodel.tensors.items()
            if t.numel() > 1
        }
        updates.append(Update(client, tier, {n: t + noise.get(n, 0) for n, t in submodel.tensors.items()}, submodel.places, 1))
    return method.aggregate(state, updates)


def started(*ratios: float) -> tuple[Any, GlobalState]:
    method = create("fedhm", tiers=ratios)
    return method, method.init(NETWORK, tuple(map(Tier, ratios)), generator(0, "init"))


def test_a_state_carries_the_vectors_of_the_state_before_it_and_they_are_stored_with_it(tmp_path):
    method, state = started(1.0, 0.25)
    assert not state.warm
    after = after_a_round(method, state)
    found = method._factors(state)
    blocks = {layer for layer, factors in found.items() if factors.way == "block"}
    assert blocks == after.warm.keys()
    assert len(blocks) == 7
    assert all(torch.equal(after.warm[layer], found[layer].start) for layer in blocks)
    assert after.replace(after.tensors).warm is after.warm

    kept = of_file(save(tmp_path, ServerState(after))).model
    assert kept.tensors.keys() == after.tensors.keys()
    again = state.replace(kept.tensors, warm=kept.warm)
    ours, theirs = (method.submodel(of, Tier(0.25), generator(0)).tensors for of in (after, again))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    # Bits do depend on them, which is why they are stored.
    other = method.submodel(state.replace(kept.tensors, warm={}), Tier(0.25), generator(0)).tensors
    assert any(not torch.equal(tensor, other[name]) for name, tensor in ours.items())


def test_the_first_state_has_none_to_store(tmp_path):
    _, state = started(1.0, 0.25)
    assert of_file(save(tmp_path, ServerState(state))).model.warm == {}


def test_what_a_round_without_small_tiers_hands_on_does_not_depend_on_what_was_worked_out():
    method, state = started(1.0, 0.25)
    state = after_a_round(method, state)
    dense = method.submodel(state, Tier(1.0), generator(0))
    update = Update(0, Tier(1.0), dense.tensors, dense.places, 1)
    assert method.aggregate(state, [update]).warm is state.warm
    method._factors(state)
    assert method.aggregate(state, [update]).warm is state.warm


def test_a_round_tells_how_layers_were_decomposed(monkeypatch):
    method, state = started(0.5, 0.25)
    small = method.submodel(state, Tier(0.25), generator(0))
    observed = method.observe(state, [small])["decompositions"]
    assert observed == {"block": 7, "full": 0, "fallback": 0}
    monkeypatch.setattr(subspace, "_shown", lambda *of: False)
    again = state.replace(state.tensors)
    assert method.observe(again, [small])["decompositions"] == {"block": 0, "full": 0, "fallback": 7}
    for name, tensor in method.submodel(again, Tier(0.25), generator(0)).tensors.items():
        assert tensor.shape == small.tensors[name].shape


@pytest.mark.parametrize(
    "options", [{}, {"method_options": {"allocate": "spectral", "plan_every": 1}}, {"server_optimizer": "avgm"}]
)
def test_a_run_that_is_stopped_goes_on_to_the_same_bits(options, tmp_path):
    config = RunConfig.of(
        {
            "method": "fedhm", "tiers": (0.25, 0.125), "profile": "lab", "rounds": 3, "clients": 4, "per_round": 2, "local_epochs": 1,
            "data_share": 0.05, "model": "resnet9", "eval_every": 2, "eval_samples": 20, "seed": 1, **options,
        }
    )  # fmt: skip
    whole = stopped_after(config, tmp_path / "whole", 3)
    last = checkpoint_of(whole, 3)
    assert of_file(last).model.warm
    for stop in (1, 2):
        folder = stopped_after(config, tmp_path / f"stopped-{stop}", stop)
        stopped_after(config, folder, 3, resume=True)
        assert checkpoint_of(folder, 3).name == last.name  # ends in the hash of its content

"""The protocol: the sum is exact, a masked vector says nothing, clients reveal what they must and no more, messages have known sizes."""

from __future__ import annotations

import typing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol import CONTEXT, agreed, member, summed, uint32
from scipy.stats import chisquare

from edgefl.contrib.secagg import ProtocolError
from edgefl.contrib.secagg.graph import graph_of, masked_with, shortage, threshold_of
from edgefl.contrib.secagg.group import MaskedGroup
from edgefl.contrib.secagg.member import masked, signed_seeds
from edgefl.contrib.secagg.messages import stages, vector_bytes, written
from edgefl.contrib.secagg.primitives import agreed as agree
from edgefl.contrib.secagg.primitives import expanded, opened, sealed
from edgefl.contrib.secagg.shamir import PRIME, recovered, shared
from edgefl.contrib.secagg.vector import Coding, packed, unpacked


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_unmasked_sum_is_the_sum_of_the_quantised_updates_whoever_is_lost(data):
    count, bits = data.draw(st.integers(3, 9), "clients"), data.draw(st.sampled_from((12, 16, 23, 32)), "bits")
    neighbours = data.draw(st.sampled_from((None, 2, 4)), "neighbours")
    early = tuple(data.draw(st.sets(st.integers(0, count - 1), max_size=1), "lost early") for _ in range(2))
    played = agreed(count, bits, 7, neighbours, early=early)
    left = sorted(played.server.agreed)
    coding = Coding(bits, count, 1.5, 40)
    rng = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    changes = {number: rng.normal(0, 1, 7).astype(np.float32) for number in left}
    weights = {number: int(rng.integers(1, 41)) for number in left}
    lost = data.draw(st.sets(st.sampled_from(left), max_size=len(left) // 3), "lost late") if left else set()
    coded = {n: coding.encoded(changes[n], weights[n], rng)[0] for n in left if n not in lost}
    silent = data.draw(st.sets(st.sampled_from(sorted(coded)), max_size=1), "silent") if coded else set()
    server = played.server
    problem = shortage(server.graph, left, coded, set(coded) - silent, server.threshold)
    refusing = [n for n in coded if n not in silent and len(server.graph[n] & coded.keys()) + 1 < server.threshold]
    if problem or refusing:
        with pytest.raises(ProtocolError, match="expected"):
            summed(played, coded, silent)
        return
    total = summed(played, coded, silent)
    plain = sum((of.astype(object) for of in coded.values()), np.zeros(7, object))
    assert total.tolist() == [value % 2**bits for value in plain.tolist()]
    true = sum(weights[n] * np.clip(changes[n].astype(np.float64), -1.5, 1.5) for n in coded) + np.zeros(7)
    assert np.abs(coding.decoded(total) - true).max() <= len(coded) * coding.step * (1 + 1e-9)


def test_lost_clients_are_tolerated_up_to_the_threshold_and_not_beyond():
    vectors = {number: uint32([number, 2**16 - 1]) for number in range(9)}
    for lost, fine in ((3, True), (4, True), (5, False)):
        played = agreed(9, 16, 2)
        assert played.server.threshold == 5
        left = {number: vector for number, vector in vectors.items() if number >= lost}
        if fine:
            assert summed(played, left).tolist() == [sum(left) % 2**16, -len(left) % 2**16]
        else:
            with pytest.raises(ProtocolError, match="vectors of 3 neighbours, expected at least 4"):
                summed(played, left)
    played = agreed(9, 16, 2)
    with pytest.raises(ProtocolError, match="4 shares of the secrets of client 0 arrived, expected 5"):
        summed(played, vectors, silent=range(5))


def test_a_masked_vector_is_uniform_whatever_the_update():
    played = agreed(3, 8, 40_000)
    vector = np.zeros(40_000, np.uint32)
    hidden = unpacked(packed(masked(vector, played.members[1].masks()), 8), 40_000, 8)
    counts = np.bincount(hidden, minlength=256)
    assert chisquare(counts).pvalue > 0.01
    assert chisquare(np.bincount(hidden[:-1] ^ hidden[1:], minlength=256)).pvalue > 0.01
    # Without its own mask or without one of its neighbours' it is another vector, as uniform as this one.
    seeds = list(signed_seeds(played.members[2].masks()))
    assert [sign for sign, _ in seeds] == [1, -1, -1]
    assert len({seed for _, seed in seeds}) == 3


def test_two_clients_have_one_mask_in_common_with_opposite_signs():
    played = agreed(4, 32, 1)
    pairs = [(seed, sign) for one in played.members.values() for sign, seed in list(signed_seeds(one.masks()))[1:]]
    by_seed = {seed: [sign for other, sign in pairs if other == seed] for seed, _ in pairs}
    assert len(by_seed) == 6
    assert all(sorted(signs) == [-1, 1] for signs in by_seed.values())


@pytest.mark.parametrize("neighbours", [None, 4])
def test_messages_have_exactly_the_bytes_of_the_costs(neighbours):
    played = agreed(9, 20, 11, neighbours, share=0.3, early=({4}, {7}))
    server, graph = played.server, played.server.graph
    vectors = {number: uint32(range(11)) for number in server.agreed if number != 2}
    summed(played, vectors, silent={5})
    keyed = set(range(9)) - {4}
    for number, found in played.sizes.items():
        near = graph[number]
        wanted = stages(len(near & keyed), len(near & server.agreed), len(near & vectors.keys()))
        sizes = [(stage.upload_bytes, stage.download_bytes) for stage in wanted]
        assert found == sizes[: len(found)]
        assert len(found) == (0 if number == 4 else 1 if number == 7 else 2 if number in (2, 5) else 3)
    assert len(packed(vectors[0], 20)) == vector_bytes(11, 20) == 28


def test_the_server_takes_nothing_but_the_bytes_of_messages():
    taken = [name for name in vars(MaskedGroup) if name.startswith("add_")]
    assert taken == ["add_keys", "add_shares", "add_vector", "add_answer"]
    for name in taken:
        hints = typing.get_type_hints(getattr(MaskedGroup, name))
        assert list(hints.values()) == [int, bytes, type(None)]


def test_nothing_that_the_server_stores_gives_a_vector_away():
    played = agreed(4, 16, 64)
    vectors = {number: uint32(np.full(64, 1000 + number)) for number in range(4)}
    assert (summed(played, vectors) == 4006).all()
    held = b"".join([*played.server._keys.values(), *(text for of in played.server._sealed.values() for text in of.values())])
    held += b"".join(share for of in played.server._answers.values() for share in of.values())
    for one in played.members.values():
        assert one._private not in held
        assert one._channel not in held
        assert one._seed not in held


def test_a_client_reveals_one_secret_of_each_neighbour_once():
    played = agreed(4, 16, 1)
    server = played.server
    for number in (0, 1, 2):
        server.add_vector(number, packed(masked(uint32([1]), played.members[number].masks()), 16))
    answer = played.members[0].unmask(server.arrived_for(0))
    assert len(answer) == 4 * 37
    with pytest.raises(ProtocolError, match="stage 4 follows stage 3, and client 0 has completed 4"):
        played.members[0].unmask(b"")
    with pytest.raises(ProtocolError, match="client 9 is no neighbour of client 1"):
        played.members[1].unmask(written([(9, b"")]))


def test_a_client_refuses_messages_that_are_not_of_its_turn_or_not_for_it():
    one, other, third = (member(number) for number in range(3))
    keys = {number: each.keys() for number, each in enumerate((one, other, third))}
    with pytest.raises(ProtocolError, match="client 0 was sent its own keys"):
        one.shares(written([(0, keys[0])]))
    one = member(0)
    with pytest.raises(ProtocolError, match="keys of 0 neighbours, expected at least 1"):
        one.shares(b"")
    one = member(0)
    shares = one.shares(written([(1, keys[1]), (2, keys[2])]))
    other.shares(written([(0, keys[0]), (2, keys[2])]))
    to_other = shares[4:86]
    with pytest.raises(ProtocolError, match="shares of client 5, which is no neighbour of client 1"):
        other.receive(written([(5, to_other)]))
    for text in (to_other[:-1] + bytes([to_other[-1] ^ 1]), shares[90:]):
        fresh = member(1)
        fresh.shares(written([(0, keys[0]), (2, keys[2])]))
        with pytest.raises(ProtocolError, match="was changed or is not for this client"):
            fresh.receive(written([(0, text)]))
    with pytest.raises(ProtocolError, match="a threshold of 1, expected at least 2"):
        member(0, 1)
    with pytest.raises(ProtocolError, match="a public key that no honest client has"):
        agree(b"k" * 32, bytes(32), CONTEXT)


def test_the_server_refuses_messages_that_come_twice_or_have_the_wrong_size():
    played = agreed(3, 16, 2)
    with pytest.raises(ProtocolError, match="client 1: a message twice, or out of turn"):
        played.server.add_keys(1, bytes(64))
    with pytest.raises(ProtocolError, match="a vector of 3 bytes, expected 4"):
        played.server.add_vector(1, bytes(3))
    with pytest.raises(ProtocolError, match="client 7: a message twice"):
        played.server.add_vector(7, bytes(4))
    played.server.add_vector(1, bytes(4))
    with pytest.raises(ProtocolError, match="a message of 5 bytes, expected a multiple of 37"):
        played.server.add_answer(1, bytes(5))
    new = MaskedGroup(played.server.graph, CONTEXT, 2, 1, 8)
    with pytest.raises(ProtocolError, match="keys of 3 bytes, expected 64"):
        new.add_keys(0, bytes(3))


def test_false_shares_are_noticed():
    played = agreed(3, 16, 1)
    for number in (0, 1):
        played.server.add_vector(number, packed(masked(uint32([1]), played.members[number].masks()), 16))
    for number in (0, 1):
        answer = bytearray(played.members[number].unmask(played.server.arrived_for(number)))
        answer[-1] ^= 1  # the share of the private key of client 2
        played.server.add_answer(number, bytes(answer))
    with pytest.raises(ProtocolError, match="the shares of client 2 do not give its private key|do not belong to one secret"):
        played.server.total()


def test_shares_are_points_of_a_polynomial_with_the_secret_at_zero():
    # f(x) = 5 + 7x + 11x²: worked out by hand at x = holder + 1.
    coefficients = iter([7, 11])
    shares = shared((5).to_bytes(32, "big"), 3, [0, 2, 6], lambda count: next(coefficients).to_bytes(count, "big"))
    assert {holder: int.from_bytes(share, "big") for holder, share in shares.items()} == {0: 23, 2: 125, 6: 593}
    assert recovered(shares, 3) == (5).to_bytes(32, "big")
    with pytest.raises(ProtocolError, match="2 shares of a secret, expected at least 3"):
        recovered({0: shares[0], 2: shares[2]}, 3)
    # Two of three shares fit every secret: for another secret there is a third share too.
    assert recovered({**shares, 6: (594).to_bytes(33, "big")}, 3) != (5).to_bytes(32, "big")


def test_the_modulus_of_shares_is_prime():
    # Miller and Rabin's test with 40 bases: a composite number passes with a chance below 4⁻⁴⁰.
    odd, halves = PRIME - 1, 0
    while odd % 2 == 0:
        odd, halves = odd // 2, halves + 1
    for base in range(2, 42):
        powers = [pow(base, odd << turn, PRIME) for turn in range(halves)]
        assert powers[0] in (1, PRIME - 1) or PRIME - 1 in powers


@given(st.lists(st.integers(0, 2**32 - 1), max_size=70), st.integers(1, 32))
def test_packed_values_come_back_without_their_higher_bits(values, bits):
    message = packed(uint32(values), bits)
    assert len(message) == vector_bytes(len(values), bits)
    assert unpacked(message, len(values), bits).tolist() == [value % 2**bits for value in values]


def test_many_values_of_odd_bits_are_packed_in_several_parts():
    values = np.random.default_rng(0).integers(0, 2**13, 70_001).astype(np.uint32)
    assert (unpacked(packed(values, 13), 70_001, 13) == values).all()


@pytest.mark.parametrize(("count", "neighbours"), [(5, 4), (12, 4), (31, 10), (4, 20)])
def test_every_member_has_as_many_neighbours_and_the_graph_is_connected(count, neighbours):
    graph = graph_of(range(count), neighbours, np.random.default_rng(1))
    assert {len(of) for of in graph.values()} == {min(neighbours, count - 1)}
    reached, edge = {0}, {0}
    while edge:
        edge = {other for one in edge for other in graph[one]} - reached
        reached |= edge
    assert len(reached) == count
    assert all(one not in graph[one] for one in graph)


def test_clients_without_enough_holders_of_their_shares_agree_on_no_mask():
    graph = graph_of(range(12), 4, np.random.default_rng(1))
    one = 0
    rest = set(range(12)) - set(sorted(graph[one])[:2])
    assert one in masked_with(graph, rest, rest, 3)
    assert one not in masked_with(graph, rest, rest, 4)


@pytest.mark.parametrize(
    ("neighbours", "share", "threshold"), [(2, 0.5, 2), (9, 0.5, 6), (9, 0.999, 10), (20, 2 / 3, 15), (1, 0.1, 2)]
)
def test_more_than_the_share_of_the_holders_must_answer(neighbours, share, threshold):
    assert threshold_of(neighbours, share) == threshold


def test_quantised_changes_are_right_on_average_and_clipped_ones_are_counted():
    coding = Coding(16, 4, 0.5, 10)
    assert (coding.levels, coding.step) == (8191, pytest.approx(5 / 8191))
    rng = np.random.default_rng(0)
    change = np.array([0.3, -0.3, 0.9, -2.0, 0.0], np.float32)
    coded, clipped = coding.encoded(change, 10, rng)
    assert clipped == 2
    assert coding.decoded(coded)[[2, 3, 4]].tolist() == pytest.approx([5.0, -5.0, 0.0])
    many = np.mean([coding.decoded(coding.encoded(change, 7, rng)[0]) for _ in range(4000)], axis=0)
    assert many == pytest.approx([2.1, -2.1, 3.5, -3.5, 0.0], abs=4 * coding.step / np.sqrt(4 * 4000))
    for weight in (0, 11):
        with pytest.raises(ValueError, match=f"weight: got {weight}, expected 1 to 10"):
            coding.encoded(change, weight, rng)
    with pytest.raises(ValueError, match="change: got NaN or infinity"):
        coding.encoded(np.array([np.nan]), 1, rng)


def test_too_few_bits_for_a_group_are_refused_with_the_least_that_do():
    with pytest.raises(ValueError, match="bits: 8 cannot carry the sum of 20 clients that weigh up to 100; give at least 11"):
        Coding(8, 20, 1.0, 100)
    assert Coding(11, 20, 1.0, 100).levels == 51
    with pytest.raises(ValueError, match="bits: got 33, expected 1 to 32"):
        Coding(33, 2, 1.0, 1)


def test_the_stream_of_a_mask_is_aes_in_counter_mode():
    # NIST SP 800-38A, F.5.5: the first block of CTR-AES256 is AES(counter) ⊕ plain; here counter and plain are zero.
    assert expanded(bytes(32), 4).astype("<u4").tobytes().hex() == "dc95c078a2408989ad48a21492842087"
    assert opened(b"k" * 32, sealed(b"k" * 32, b"text")) == b"text"

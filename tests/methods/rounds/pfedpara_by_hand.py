"""Two rounds of pFedPara in NumPy (section 2.3 and Algorithm 2): W = W₁ ⊙ (W₂ + 1), and X₂, Y₂, T₂ stay where they are.

Ranks as in fedpara_by_hand; the classifier (3, 4) would need rank 2, 2·2·7 = 28 numbers for 12, and stays dense.
"""

from conv_net_by_hand import CLIENTS, mean
from fedpara_by_hand import start, step


def after(rounds=2):
    """Return the server's shared tensors, and client → personal tensors."""
    first = start()
    shared = {name: value for name, value in first.items() if not name.endswith("2")}
    kept = {client: {name: value for name, value in first.items() if name.endswith("2")} for client, _ in CLIENTS}
    for _ in range(rounds):
        trained = [step(shared | kept[client], client, count, one=1.0) for client, count in CLIENTS]
        shared = mean(trained, shared)
        kept = {client: {n: t[n] for n in kept[client]} for (client, _), t in zip(CLIENTS, trained, strict=True)}
    return shared, kept

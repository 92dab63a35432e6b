"""NumPy only: one round of last blocks, on the network of small_conv_by_hand.py, whose blocks are conv1 and conv2 with the classifier.

Client A trains both blocks, client B the last: conv1 stays as it was sent. Every tensor is averaged over the clients that train it, by
samples.
"""

from small_conv_by_hand import cross_entropy, data, dense, descend

LR = 0.3
CLIENTS = {"A": (True, 3, 0.4), "B": (False, 5, 2.0)}  # whether it trains both blocks, samples, start of the data


def start():
    """Return the server's weights."""
    return dense(4, 0.2)


def local(state, client, steps=2):
    """Return what ``client`` sends: the tensors that it trains."""
    both, samples, begin = CLIENTS[client]
    x, y = data(samples, begin)
    frozen = {} if both else {"conv1.weight": state["conv1.weight"]}
    held = {name: tensor for name, tensor in state.items() if name not in frozen}
    for _ in range(steps):
        held = descend(lambda p: cross_entropy({**frozen, **p}, x, y), held, LR)
    return held


def average(state, sent):
    """Return the mean by samples over the clients that send a tensor; the others stay."""
    after = {}
    for name, before in state.items():
        trainers = [(CLIENTS[client][1], tensors[name]) for client, tensors in sent.items() if name in tensors]
        after[name] = sum(n * t for n, t in trainers) / sum(n for n, _ in trainers) if trainers else before
    return after

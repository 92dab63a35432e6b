"""Steps of FedBuff in NumPy: three clients that are always at work, a buffer of two updates.

Sessions last 2, 3 and 7 seconds. Who has answered is asked again after the next step, with the model of that step::

    t = 2, 3    clients 0 and 1 answer: step 1;  both are asked again, client 2 still has the first model
    t = 5, 6    clients 0 and 1 answer: step 2;  both are asked again
    t = 7, 8    client 2 answers with what it made of the first model, two steps ago, then client 0: step 3
    t = 9, 10   client 1 answers, a step old, then client 0: step 4

A client's training is one step towards a target of its own. x ← sum over updates of n_i · (x + s_i · (w_i − sent_i)) / sum of n_i, with
s = 1 / (1 + staleness)^p.
"""

import numpy as np

LENGTHS_S = (2.0, 3.0, 7.0)
SAMPLES = (3, 5, 2)
RATE = 0.4
SHAPES = {
    "conv1.weight": (8, 1, 3, 3), "conv1.bias": (8,), "conv2.weight": (4, 8, 3, 3), "conv2.bias": (4,),
    "fc.weight": (3, 4), "fc.bias": (3,),
}  # fmt: skip
STEPS = (  # of each step its seconds, and of each update the client and the step whose model it was sent
    (3.0, ((0, 0), (1, 0))),
    (6.0, ((0, 1), (1, 1))),
    (8.0, ((2, 0), (0, 2))),
    (10.0, ((1, 2), (0, 3))),
)


def start():
    """Return the server's first tensors, of mixed signs."""
    rng = np.random.default_rng(1)
    return {name: rng.normal(size=shape) for name, shape in SHAPES.items()}


def target(client):
    """Return the weights that a client is drawn to."""
    rng = np.random.default_rng([2, client])
    return {name: rng.normal(size=shape) for name, shape in SHAPES.items()}


def trained(weights, client):
    """Return a client's weights after its session."""
    goal = target(client)
    return {name: weights[name] - RATE * (weights[name] - goal[name]) for name in weights}


def states(power):
    """Return the server's tensors before the first step and after each."""
    found = [start()]
    for number, (_, updates) in enumerate(STEPS):
        now, after = found[-1], {}
        for name in SHAPES:
            total, weight = np.zeros(SHAPES[name]), 0
            for client, sent_at in updates:
                sent = found[sent_at]
                moved = trained(sent, client)[name] - sent[name]
                total += SAMPLES[client] * (now[name] + moved / (1 + number - sent_at) ** power)
                weight += SAMPLES[client]
            after[name] = total / weight
        found.append(after)
    return found

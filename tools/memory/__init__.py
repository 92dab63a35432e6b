"""Networks of many kinds, and the memory of their training steps and inferences: predicted, and measured by others' counters.

- ``networks.py`` lists the networks, ``blocks.py`` has what they are made of.
- ``measure.py`` predicts and measures the memory of one network.
- ``rows.py`` reads and writes the stored measurements.
"""

"""What tools/compare_counters.py and tools/compare_memory.py are made of.

- ``reference_layers``: one layer of every kind, with its closed form.
- ``networks``: whole networks, and the walk that sums their layers' closed forms.
- ``peers``: the other counters, one function each.
- ``markdown``: tables, and the markers between which a page holds them.
"""

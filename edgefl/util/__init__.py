"""Files, units, threads and the machine: no word of the field in it."""

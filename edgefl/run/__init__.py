"""One module per thing that a user asks for: simulate, dry run, what-if, compare, export, rounds with real devices."""

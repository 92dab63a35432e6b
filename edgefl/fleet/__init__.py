"""The fleet: device profiles, how a population is mixed from them, budgets, and the simulated clock."""

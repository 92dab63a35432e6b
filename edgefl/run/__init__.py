"""What a user asks for: simulate, rehearse, compare, export, train on devices."""

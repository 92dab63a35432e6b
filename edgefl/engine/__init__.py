"""What runs clients: this process, several, or a process for each client; each client alone, or several of a tier together."""

"""The stages with a half on clients. The registry finds them by their decorators."""

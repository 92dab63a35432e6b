"""The local objectives: what a client minimises besides its method's loss."""

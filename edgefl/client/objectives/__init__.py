"""The local objectives, one file each: what a client minimises besides its method's loss."""

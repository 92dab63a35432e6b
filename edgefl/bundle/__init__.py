"""What leaves for a device: write, verify, try, sign, quantize."""

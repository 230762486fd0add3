"""What RDMA devices there are, and which of two hosts reach each other."""

"""How bytes reach a peer's memory. fabric.pxd is the promise; one module per kind of network keeps it."""

"""The messages that travel on sockets, as protobuf. The *_pb2 modules are generated and committed, so that installing
needs no compiler; after changing a .proto file run

    make proto

opening.proto  the first frame of every connection, and its answer
node.proto     between nodes: membership, endpoints, history
attach.proto   between a node and its applications
"""

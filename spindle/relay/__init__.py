"""External clients: applications on hosts without a node, served by a node elsewhere.

    served    one such application at its node: frames to inboxes, logs to frames
    turning   who may relay for a client, and what the group has had of it: the protocol, without input or output
    desk      its input and output: questions to the other nodes, and answers

The application's side is in `spindle.client` (`remote`, `remote_channel`, `remote_ports`, `nodes`).
"""

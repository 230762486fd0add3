"""External clients: applications on hosts without a node, served by a node elsewhere.

    handover  who may relay for a client, and what the group has had of it: the protocol, without input or output
    claims    its input and output: questions to the other nodes, and answers
    figures   what the node counts of it

One such application at its node is `spindle.applications.relayed`: frames to inboxes, logs to frames.

The application's side is in `spindle.client` (`remote`, `remote_channel`, `remote_ports`, `nodes`).
"""

"""Real daemons and applications under a random mix of faults, and a checker in the manner of Jepsen.

    python -m spindle_lab.chaos --seconds 60           (or `make chaos SECONDS=60`)

Several rounds of half a minute, each with a group of its own. In a round every node has an application that writes to
topics of all four levels and one that reads them all; one each of these has no node on its host, and uses whichever
serves. Meanwhile processes are killed and stopped, nodes leave, join and start again, disks fail, journals are torn.
Then the faults end, the group must come together, and everything that everybody recorded is compared.

    message      what is written: sender, epoch, index, CRC
    application  what talker and watcher have in common
    talker       writes, and records what was accepted, acknowledged, persisted
    watcher      reads, and records what came; as auditor, the history at the end
    history      the records
    checker      what is not as promised
    stage        the processes
    faults       what goes wrong
    hosts        network namespaces, with --hosts
    lines        what delays and loses there; forwarder: the process that it takes
    links        what goes wrong between them
    disk         failing disks and damaged files
    round        one round from start to verdict

A seed gives the same plan and the same choice of faults again; what the processes make of it depends on their timing,
so a violation's evidence is kept: the records, all logs, the journals, and the faults with their times.
"""

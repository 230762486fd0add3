"""Recording topics, and playing recordings: what `spindle record` and `spindle replay` do.

    recorder   reads topics in their orders, from node to node, into a file
    lanes      what a topic in a file is, and what it is to be played onto
    player     writes the messages of files to topics again, at their times
    underway   what the player has on its way, for the day that its node dies
    rosmsg     types of ROS 2 bags
    words      times and names as people type them

Why here: nodes know no types, and the layer of DDS knows no files; the commands may know both.
"""

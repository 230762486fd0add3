#!/bin/busybox sh
# The first process of a guest: load the drivers, put the host's files under a layer that is thrown away, run the job.
#
# What comes from outside: the share `host`, its whole file system, and the share `exchange`, the one directory in which
# what a guest writes stays, and where `project` says where the project is. /modules lists the drivers in the order in
# which they can be loaded.
bb=/bin/busybox
give_up() { echo "guest: $1"; $bb poweroff -f; }

$bb mount -t devtmpfs none /dev
$bb mount -t proc none /proc
$bb mount -t sysfs none /sys
for module in $($bb cat /modules); do
  $bb insmod "/drivers/$module" || give_up "$module can't be loaded"
done

share() { $bb mount -t 9p -o "trans=virtio,version=9p2000.L,msize=524288,$3" "$1" "$2" || give_up "no share $1"; }
share host /host ro,cache=loose
$bb mount -t tmpfs none /layer
$bb mkdir -p /carried /layer/changed /layer/work
$bb mount -t overlay -o lowerdir=/carried:/host,upperdir=/layer/changed,workdir=/layer/work none /guest || give_up "no overlay"
for place in dev proc sys; do $bb mount -o bind "/$place" "/guest/$place"; done
$bb mkdir -p /guest/dev/shm /guest/exchange /project
share exchange /guest/exchange rw
# The project may lie below one of the places that are a guest's own.
project=$($bb cat /guest/exchange/project)
$bb mount -o bind "/guest$project" /project
for place in dev/shm run tmp; do $bb mount -t tmpfs none "/guest/$place"; done
$bb mkdir -p "/guest$project"
$bb mount -o bind /project "/guest$project" || give_up "no $project"
$bb cp /guest/exchange/job.sh /guest/run/job.sh
$bb chroot /guest /bin/bash /run/job.sh 2>&1
$bb poweroff -f

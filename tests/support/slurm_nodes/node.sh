# A node's namespaces.
hostname "$NAME"
mkdir -p /tmp/ray "$FOLDER"/"$NAME"/ray "$FOLDER"/"$NAME"/spool
mount --bind "$FOLDER"/"$NAME"/ray /tmp/ray
mount -t tmpfs -o size=2g tmpfs /dev/shm
slurmd -D -N "$NAME" &
while :; do sleep 0.2; wait; done

# The controller's namespaces. What nobody else ends is reaped by this shell, which is their first process.
set -e
hostname controller
ip link set lo up
ip link add bridge type bridge
ip addr add 10.77.0.1/24 dev bridge
ip link set bridge up
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
for number in 1 2; do
    ip netns add n$number
    ip link add to-n$number type veth peer name eth0 netns n$number
    ip link set to-n$number master bridge up
    ip -n n$number addr add 10.77.0.1$number/24 dev eth0
    ip -n n$number link set eth0 up
    ip -n n$number link set lo up
done
mount --bind "$FOLDER"/hosts /etc/hosts
munged --force --key-file="$FOLDER"/munge/key --socket="$FOLDER"/munge/socket --pid-file="$FOLDER"/munge/pid \
    --log-file="$FOLDER"/munge/log --seed-file="$FOLDER"/munge/seed
slurmctld
set +e
touch "$FOLDER"/ready
while :; do sleep 0.2; wait; done

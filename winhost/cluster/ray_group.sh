# Runs in each pod of a group: ray_group.sh leader SIZE PROGRAM… starts the head of a Ray cluster, waits until all nodes
# are there and becomes the program; ray_group.sh worker ADDRESS joins it, and once more where the head was lost.
set -eu
port=6379
role=$1
shift
if [ "$role" = worker ]; then
    tries=0
    until ray start --address="$1:$port" --node-ip-address="$VLLM_HOST_IP" --block --disable-usage-stats; do
        tries=$((tries + 1))
        [ "$tries" -lt 360 ] || exit 1
        sleep 5
    done
    exit 0
fi
size=$1
shift
ray start --head --port="$port" --node-ip-address="$VLLM_HOST_IP" --include-dashboard=false --disable-usage-stats
tries=0
until [ "$(python3 -c 'import ray; ray.init(address="auto", log_to_driver=False); print(sum(node["Alive"] for node in ray.nodes()))')" -ge "$size" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 360 ] || exit 1
    sleep 5
done
exec "$@"
